"""Rules of words: what docstrings begin with, and which words names, messages and prose do not use.

`python test/test_words.py compiler/auto` lists what breaks the rules in a folder; without
a folder it prints the counts of all.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PACKAGES = ("dialect", "passes", "runtime", "compiler", "tools")

FOLDERS = (*PACKAGES, "bench", "examples", "docs", "test")

EXCEPTIONS = {
    # The key of `pw.times` in the IR.
    "dialect/attributes/call_times.py: name: made_with has 'made'",
    "dialect/attributes/fields.py: name: _MADE_WITH has 'made'",
    "dialect/attributes/fields.py: name: made_with has 'made'",
    # The first argument of `pathways.connect`.
    "runtime/clusters/connect.py: pronoun: where",
}
"""Findings that are right as they are, written as the test prints them without their line."""

VAGUE = re.compile(
    r"What|Whatever|Whether|How|However|Where|Wherever|Which|Whichever|Who|Whoever|Whom|Whose|Why|When|"
    r"Whenever|That|It|Its|This|These|Those|They|Them|Their|There|Here|Such|Somebody|Something|Nobody|"
    r"Nothing|Everybody|Everything|Anybody|Anything|Another|Others|He|She|His|Her|So|As"
)
"""Relative and interrogative words and pronouns: a sentence that begins with one names its subject late."""

VERBS = re.compile(
    r"Asks|Checks|Creates|Declares|Ends|Forgets|Gives|Has|Holds|Inlines|Is|Keeps|Lets|Listens|Makes|"
    r"Merges|Moves|Opens|Reads|Removes|Returns|Runs|Says|Sends|Splits|Starts|Takes|Tells|Waits|Writes"
)
"""Third persons that are no plural of a noun."""

DETERMINERS = re.compile(r"a|an|the|what|which|where|how|whether|who|all|each|every|one|its|their|this")
"""Words that show, behind a word in s, that it is a verb."""

NOUNS = re.compile(
    r"Arguments|Arrays|Bytes|Clients|Devices|Functions|Iterations|Inputs|Kwargs|Microseconds|"
    r"Milliseconds|Nanoseconds|Outputs|Parameters|Programs|Replicas|Rows|Rules|Seconds|Settings|Shards|"
    r"Trees|Units|Values|Weights|Workers"
)
"""Plurals that are no third person of a verb."""

NAMES = re.compile(
    r"turns?|told|tells?|bury|buries|buried|sweeps?|sweeper|doors?|guests?|greet\w*|lobby|keepers?|openers?"
    r"|mourn\w*|expel\w*|doom\w*|several|asks?|asked|asking|says?|said|looks?|looking|underway|gone|forgets?"
    r"|forgot\w*|lies|who|whoever|whom|whose|questions?|somebody|nobody|others|made|makes"
)
"""Words that stand in no name; `in_turn`, one after another, is meant otherwise."""

_COUNTS = r"an?|the|each|every|one|two|per|last|first|next|other|same|all|of|more|many|few|\d+|\w+'s"

PROSE = (
    (rf"\b(?:{_COUNTS})(?: \w+)? turns?\b(?! (?:off|on|it|into|to)\b)", "iteration"),
    (r"\bunder way\b", "in flight, pending"),
    (r"\bhow-?many-?th\b", "index"),
    (r"\bl(?:ies?|ay) (?:on|in|at|by|over|where|there|here|as|with)\b", "sharding, layout, placement"),
    (r"\b(?:is|are|was|were|has|have|been|be) (?:told|asked)\b", "report, notify, request"),
    (r"\b(?:is|are|was|were|has|have|been|be) gone\b", "lost, disconnected, removed"),
    (r"\basked for\b|\basks? for\b", "request"),
    (r"\bwhoever\b|\bsomebody\b|\bof whom\b|\bin whose\b|\bof which\b|\bsuch as it is\b", "a main clause"),
    (r"\blets? (?:it|them) go\b", "release, free"),
    (r"\bwhat (?:it|an? \w+) is at\b", "state, current operation"),
    (r"\bmourn\w*|\bbur(?:y|ied|ies)\b|\bexpel\w*|\bdoom\w*|\bsweeps?\b", "remove, disconnect, free"),
    (r"\bguests?\b|\bgreet\w*|\blobby\b|\bdoors?\b|\bkeeper\b", "peer, handshake, acceptor"),
)
"""Phrases that stand in no docstring, comment or message, with what to write instead."""

CLAUSES = {
    "those that": r"\bthose (?:that|which|who|whose|of)\b",
    "what it": r"\bwhat (?:it|they|is|are|was|were|has|have)\b",
    "goes on": r"\b(?:go|goes|going|went) on\b",
    "has X done": r"\bha(?:s|ve) (?:an?|the|its|their|all|each|every)(?: \w+){1,3} "
    r"(?:copied|done|issued|loaded|made|read|removed|restored|run|sent|written)\b",
    "is no": r"(?<!there )\b(?:is|are|was|were) no\b(?! (?:earlier|later|less|longer|more)\b)",
}
"""Clauses whose subject is not a thing, or whose verb says little."""

PRONOUNS = re.compile(r"(?:found|given|how|kept|known|one|own|taken|there|wanted|what|where|which|whole)s?")
"""Pronouns and participles, which do not name a value; `why`, a field of many events, does."""

_ANY_PROSE = re.compile("|".join(pattern for pattern, _ in PROSE), re.IGNORECASE)

LOGGERS = {"log", "logger", "logging"}
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}

NODES = (
    ast.Module,
    ast.ClassDef,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.arg,
    ast.Name,
    ast.Attribute,
    ast.Raise,
    ast.Call,
    ast.Expr,
)

Place = tuple[int, str, str]
"""A line, the rule that it breaks, and how."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A place that breaks a rule."""

    file: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text}"

    @property
    def key(self) -> str:
        """The finding without its line, as `EXCEPTIONS` has it."""
        return f"{self.file}: {self.rule}: {self.text}"


@functools.cache
def nodes_of(text: str) -> list[ast.AST]:
    """Returns the nodes of a program that rules are about."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, NODES)]


def is_below(file: str, folder: str) -> bool:
    return f"{file}/".startswith(f"{folder}/")


def findings_below(folder: str) -> Iterator[Finding]:
    paths = [ROOT / folder] if folder.endswith(".py") else sorted((ROOT / folder).rglob("*.py"))
    for path in paths:
        yield from findings(str(path.relative_to(ROOT)), path.read_text())


def findings(file: str, text: str) -> Iterator[Finding]:
    """Yields what breaks the rules in the text of a file."""
    nodes = nodes_of(text)
    for node in nodes:
        for line, rule, wording in (*first_words(node, file), *names(node, file), *messages(node)):
            yield Finding(file, line, rule, wording)
    for line, prose in (*docstrings(nodes), *comments(text)):
        for lines, wording in phrases(prose):
            yield Finding(file, line + lines, "prose", wording)


def clauses(file: str, text: str) -> Iterator[Finding]:
    """Yields the clauses of docstrings without a thing as subject, and names that are pronouns."""
    nodes = nodes_of(text)
    for line, prose in docstrings(nodes):
        for rule, pattern in CLAUSES.items():
            for found in re.finditer(pattern, prose, re.IGNORECASE):
                lines = prose[: found.start()].count("\n")
                yield Finding(file, line + lines, rule, repr(" ".join(found[0].split())))
    for node in nodes:
        name = defined_name(node)
        if name is not None and PRONOUNS.fullmatch(name.strip("_").lower()):
            yield Finding(file, getattr(node, "lineno", 1), "pronoun", name)


def docstring(node: ast.AST) -> str:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(node) or ""
    return ""


def docstrings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yields the strings that are statements: docstrings of modules, classes, functions and fields."""
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def comments(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        before, mark, comment = line.partition("# ")
        if mark and (not before or before.endswith(" ")):
            yield number, comment


def first_words(node: ast.AST, file: str) -> Iterator[Place]:
    """Yields the docstrings that a node holds whose first word is of the wrong kind."""
    doc = docstring(node)
    match node:
        case ast.Module() if doc:
            yield from noun_first(1, "module", doc)
        case ast.ClassDef() if doc and not is_of_the_ir(node):
            yield from noun_first(node.lineno, f"class {node.name}", doc)
        case ast.FunctionDef() | ast.AsyncFunctionDef() if doc:
            if any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield from noun_first(node.lineno, f"property {node.name}", doc, also=("Whether",))
            else:
                yield from verb_first(node, doc, is_claim(node, file))
    if isinstance(node, ast.Module | ast.ClassDef):
        for field, below in itertools.pairwise(node.body):
            match field, below:
                case (
                    ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(doc))),
                ):
                    yield from noun_first(below.lineno, f"field {name}", doc, also=("Whether",))


def is_of_the_ir(node: ast.ClassDef) -> bool:
    """Returns whether a class is an operation or a pass: these are documented by what they do, as in MLIR."""
    decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
    return "operation" in decorators or any(ast.unparse(base) == "Pass" for base in node.bases)


def is_claim(node: ast.FunctionDef | ast.AsyncFunctionDef, file: str) -> bool:
    """Returns whether a function is documented by what holds: as relations of the IR and tests are."""
    return any(arg.arg == "report" for arg in node.args.args) or (
        is_below(file, "test") and not is_below(file, "test/support")
    )


def noun_first(line: int, subject: str, doc: str, also: tuple[str, ...] = ()) -> Iterator[Place]:
    first, second = first_two(doc)
    if VAGUE.fullmatch(first) and first not in also:
        yield line, "vague first word", f"{subject} begins with {first}"
    elif (VERBS.fullmatch(first) and second != "of") or (
        is_third_person(first) and DETERMINERS.fullmatch(second)
    ):
        yield line, "verb instead of noun", f"{subject} begins with {first}"


def verb_first(node: ast.FunctionDef | ast.AsyncFunctionDef, doc: str, claim: bool) -> Iterator[Place]:
    first, second = first_two(doc)
    if VAGUE.fullmatch(first):
        yield node.lineno, "vague first word", f"function {node.name} begins with {first}"
    elif claim or first in ("See", "No-op"):
        return
    elif not is_third_person(first) or second == "of" or NOUNS.fullmatch(first):
        yield node.lineno, "no verb first", f"function {node.name} begins with {first}"


def first_two(doc: str) -> tuple[str, str]:
    first, second = [*doc.split()[:2], "", ""][:2]
    # What follows a colon or a comma is no object of a verb.
    if first.endswith((":", ",", ".")):
        second = ""
    return first.strip("`.,:;"), second


def is_third_person(word: str) -> bool:
    return re.fullmatch("[A-Z][a-z-]+s", word) is not None


def defined_name(node: ast.AST) -> str | None:
    """Returns the name that a node defines; None for tests and other nodes."""
    match node:
        case ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) if not name.startswith("test_"):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
    return None


def names(node: ast.AST, file: str) -> Iterator[Place]:
    """Yields the names that a node defines and that have a word of `NAMES`."""
    name = Path(file).stem if isinstance(node, ast.Module) else defined_name(node)
    if name is None:
        return
    line = getattr(node, "lineno", 1)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("_").lower().split("_")
    for before, word in zip(("", *words), words, strict=False):
        if NAMES.fullmatch(word) and (before, word) != ("in", "turn"):
            yield line, "name", f"{name} has {word!r}"
    if re.match(r"_*MOST_", name):
        yield line, "name", f"{name} has 'MOST' (MAX)"


def messages(node: ast.AST) -> Iterator[Place]:
    """Yields words of messages of errors and of log lines, and log lines that end in a full stop."""
    match node:
        case ast.Raise(exc=ast.Call(args=args)):
            texts = [text for argument in args for text in strings(argument)]
        case ast.Call(func=ast.Attribute(value=ast.Name(id=logger), attr=level), args=[first, *_]) if (
            logger.strip("_").lower() in LOGGERS and level in LEVELS
        ):
            texts = list(strings(first))
            if texts and re.search(r"[a-z]\.$", texts[-1]):
                yield node.lineno, "log line", f"{texts[-1]!r} ends in a full stop"
        case _:
            return
    for text in texts:
        yield from ((node.lineno, "message", wording) for _, wording in phrases(text))


def phrases(text: str) -> Iterator[tuple[int, str]]:
    """Yields what a text says that it should not, each with the lines before it."""
    if not _ANY_PROSE.search(text):
        return
    for pattern, better in PROSE:
        for found in re.finditer(pattern, text, re.IGNORECASE):
            yield text[: found.start()].count("\n"), f"{' '.join(found[0].split())!r} ({better})"


def strings(node: ast.AST) -> Iterator[str]:
    return (
        child.value
        for child in ast.walk(node)
        if isinstance(child, ast.Constant) and isinstance(child.value, str)
    )


def classes_of_one_name() -> Iterator[str]:
    """Yields the names that two classes of the package have, with both places."""
    places = collections.defaultdict(list)
    for folder in PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in nodes_of(path.read_text()):
                if isinstance(node, ast.ClassDef):
                    places[node.name.lstrip("_")].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    yield from (f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1)


def counts(found: list[Finding]) -> str:
    rules = collections.Counter(finding.rule for finding in found)
    return "\n".join(f"{count:5} {rule}" for rule, count in rules.most_common())


def clauses_of_package() -> Iterator[Finding]:
    for folder in PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from clauses(str(path.relative_to(ROOT)), path.read_text())


@functools.cache
def all_findings() -> list[Finding]:
    return [finding for folder in FOLDERS for finding in findings_below(folder)]


def test_words_are_plain() -> None:
    found = all_findings()
    new = [f for f in found if f.key not in EXCEPTIONS]
    assert not new, "\n".join(("", *map(str, new), "", counts(new)))
    assert {f.key for f in (*found, *clauses_of_package())} >= EXCEPTIONS, (
        "no exception any more: remove it from the table"
    )


def test_clauses_have_things_as_subjects() -> None:
    new = [f for f in clauses_of_package() if f.key not in EXCEPTIONS]
    assert not new, "\n".join(("", *map(str, new)))


def test_no_two_classes_have_one_name() -> None:
    assert not list(classes_of_one_name())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('def f():\n    """What f is."""', "1: vague first word: function f begins with What"),
        ('def f():\n    """The size."""', "1: no verb first: function f begins with The"),
        ('def f():\n    """Rows of it."""', "1: no verb first: function f begins with Rows"),
        ('class A:\n    """Keeps a thing."""', "1: verb instead of noun: class A begins with Keeps"),
        ("class Told:\n    pass", "1: name: Told has 'told'"),
        ("MOST_CALLS = 3", "1: name: MOST_CALLS has 'MOST' (MAX)"),
        ("raise ValueError(f'{name} has the last turn')", "1: message: 'the last turn' (iteration)"),
        ("_log.info('%s connected.')", "1: log line: '%s connected.' ends in a full stop"),
        ("x = 1\n# Its last turn frees it.", "2: prose: 'last turn' (iteration)"),
    ],
    ids=("pronoun", "no-verb", "plural", "verb", "class", "most", "message", "full-stop", "comment"),
)
def test_each_rule_finds_what_breaks_it(source: str, expected: str) -> None:
    assert [str(found) for found in findings("tools/example.py", source)] == [f"tools/example.py:{expected}"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Rows of those that ran."""', "1: those that: 'those that'"),
        ('"""Rows.\n\nKeeps what is left."""', "3: what it: 'what is'"),
        ('"""Run that goes on."""', "1: goes on: 'goes on'"),
        ('"""Core that has the version restored."""', "1: has X done: 'has the version restored'"),
        ('"""Leaf that is no array."""', "1: is no: 'is no'"),
        ("_found = []", "1: pronoun: _found"),
    ],
    ids=("those", "what", "goes-on", "has-done", "is-no", "name"),
)
def test_each_rule_of_clauses_finds_what_breaks_it(source: str, expected: str) -> None:
    assert [str(found) for found in clauses("tools/example.py", source)] == [f"tools/example.py:{expected}"]


def test_good_words_pass() -> None:
    source = '''"""Fair-share scheduler for the steps of many clients."""

class Scheduler:
    """Scheduler of one cluster."""

    @property
    def is_idle(self) -> bool:
        """Whether no step is pending."""

    def dispatch(self) -> None:
        """Dispatches pending steps, of one client in turn."""
'''
    assert not [*findings("tools/example.py", source), *clauses("tools/example.py", source)]


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        found = [*findings_below(folder), *(f for f in clauses_of_package() if is_below(f.file, folder))]
        print("\n".join((*map(str, found), "", counts(found))))
    if not sys.argv[1:]:
        print(counts([*all_findings(), *clauses_of_package()]))
