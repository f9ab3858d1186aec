"""Textual pipelines: what they mean, how they print, and that no text gives anything but a clear error."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jaxlib.mlir.passmanager import PassManager

from examples import examples
from pathways.dialect import make_context
from pathways.passes.manager import registry
from pathways.passes.manager.base import Pass, option
from pathways.passes.manager.text import Builtin, PipelineError, parse_pipeline, pipeline_text

CONTEXT = make_context()


@dataclasses.dataclass(frozen=True)
class Example(Pass):
    """A pass with an option of every kind."""

    name = "pw-example"

    policy: str = option("program", "a string")
    max_depth: int = option(3, "an integer")
    factor: float = option(1.5, "a number")
    user_calls: bool = option(False, "a flag")

    def __post_init__(self):
        if self.max_depth < 0:
            raise ValueError("max-depth cannot be negative")

    def run(self, module):
        raise NotImplementedError


@pytest.fixture(autouse=True, scope="module")
def example_pass():
    patch = pytest.MonkeyPatch()
    patch.setitem(registry.MODULES, "pw-example", "example")
    load = registry.load
    patch.setattr(registry, "load", lambda name: Example if name == "pw-example" else load(name))
    yield
    patch.undo()


def parse(text):
    return parse_pipeline(text, CONTEXT)


@pytest.mark.parametrize(
    "text",
    [
        "pw-example,cse",
        " pw-example , cse ",
        "builtin.module(pw-example,cse)",
        " builtin.module ( pw-example\n, cse ) ",
        "builtin.module(pw-example{},cse)",
    ],
)
def test_parse_pipeline_treats_lists_and_modules_alike(text):
    assert parse(text) == [Example(), Builtin("cse")]


@pytest.mark.parametrize("text", ["", "  ", "builtin.module()", "builtin.module( )"])
def test_parse_pipeline_of_nothing_is_empty(text):
    assert parse(text) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("policy=1f1b max-depth=4", Example(policy="1f1b", max_depth=4)),
        ("policy=1f1b, max_depth=4", Example(policy="1f1b", max_depth=4)),
        ("policy=1f1b,user-calls=true", Example(policy="1f1b", user_calls=True)),
        ("user-calls", Example(user_calls=True)),
        ("user-calls=0 factor=2e-3", Example(factor=0.002)),
        ("policy='a, (b'", Example(policy="a, (b")),
        ('policy="}"', Example(policy="}")),
        ("policy={a b}", Example(policy="a b")),
        ("policy=", Example(policy="")),
        ("max-depth=+7", Example(max_depth=7)),
        ("factor=.5", Example(factor=0.5)),
        ("factor=5.", Example(factor=5.0)),
    ],
)
def test_parse_pipeline_converts_options_by_type(options, expected):
    assert parse(f"pw-example{{{options}}}") == [expected]


def test_parse_pipeline_keeps_passes_of_mlir_as_text():
    text = (
        "canonicalize{max-iterations=3 top-down=false},func.func(cse,canonicalize),sdy-propagation-pipeline"
    )
    assert parse(text) == [
        Builtin("canonicalize{max-iterations=3 top-down=false}"),
        Builtin("func.func(cse,canonicalize)"),
        Builtin("sdy-propagation-pipeline"),
    ]


def test_parse_pipeline_nests_passes_of_functions():
    assert parse("sdy-insert-explicit-reshards") == [Builtin("func.func(sdy-insert-explicit-reshards)")]


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("cse,pw-exampel", 5, "no pass is named 'pw-exampel'; did you mean 'pw-example'?"),
        ("cse,canonicalise", 5, "no pass is named 'canonicalise'; did you mean 'canonicalize'?"),
        ("func.func(cze)", 11, "no pass is named 'cze'; did you mean 'cse'?"),
        ("xyzzy", 1, "no pass is named 'xyzzy'"),
        ("pw-example{polcy=a}", 12, "'pw-example' has no option 'polcy'; did you mean 'policy'?"),
        (
            "pw-example{zzz=a}",
            12,
            "'pw-example' has no option 'zzz'; it has policy, max-depth, factor, user-calls",
        ),
        ("pw-example{max-depth=x}", 12, "option 'max-depth' of 'pw-example' must be an integer, got 'x'"),
        ("pw-example{max-depth}", 12, "option 'max-depth' of 'pw-example' must be an integer, got none"),
        ("pw-example{factor=1.2.3}", 12, "option 'factor' of 'pw-example' must be a number, got '1.2.3'"),
        (
            "pw-example{user-calls=yes}",
            12,
            "option 'user-calls' of 'pw-example' must be true or false, got 'yes'",
        ),
        ("pw-example{policy}", 12, "option 'policy' of 'pw-example' must be a value, got none"),
        ("pw-example{policy=a policy=b}", 21, "option 'policy' of 'pw-example' is given twice"),
        ("pw-example{=a}", 12, "expected option=value, got '=a'"),
        ("pw-example{max-depth=-1}", 12, "'pw-example': max-depth cannot be negative"),
        (
            "pw-example(cse)",
            11,
            "'pw-example' is a pass and contains no others; its options follow its name in braces",
        ),
        (
            "func.func(pw-example)",
            11,
            "'pw-example' works on a whole module and cannot be nested inside 'func.func'",
        ),
        ("cse,,cse", 5, "expected the name of a pass, got ','"),
        ("cse,", 5, "expected the name of a pass, got the end of the pipeline"),
        ("builtin.module(cse", 15, "'(' is never closed"),
        ("builtin.module(cse))", 20, "expected the end of the pipeline, got ')'"),
        ("builtin.module(cse}", 19, "expected ',' or ')', got '}'"),
        ("cse)", 4, "expected the end of the pipeline, got ')'"),
        ("func.func(cse", 10, "'(' is never closed"),
        ("pw-example{policy=a", 11, "'{' is never closed"),
        ("func.func(cse}", 14, "expected ')', got '}'"),
        ("any(" * 102, 404, "brackets are nested too deeply"),
        ("canonicalize{nope=1}", 1, "<Pass-Options-Parser>: no such option nope"),
        ("cse,\udcff", 5, "expected text, got bytes that are not"),
        ("sdy-convert-global-to-local", 1, "'sdy-convert-global-to-local' is refused"),
    ],
)
def test_parse_pipeline_names_mistakes_with_their_column(text, column, message):
    with pytest.raises(PipelineError) as caught:
        parse(text)
    assert caught.value.message.startswith(message)
    assert caught.value.column == column
    assert str(caught.value) == f"pipeline:1:{column}: {caught.value.message}"
    assert "\n" not in str(caught.value)


EXAMPLES = st.builds(
    Example,
    policy=st.text(st.sampled_from("ab1-_ ,(){}='"), max_size=6),
    max_depth=st.integers(0, 10**9),
    factor=st.floats(0, 1e6, allow_nan=False),
    user_calls=st.booleans(),
)
BUILTINS = st.sampled_from([Builtin("cse"), Builtin("func.func(canonicalize{max-iterations=2},cse)")])


@given(st.lists(EXAMPLES | BUILTINS, max_size=4))
def test_pipeline_text_is_parsed_back(items):
    assert parse(pipeline_text(items)) == items


NAMES = ["pw-example", "pw-cse", "cse", "func.func", "builtin.module", "policy", "max-depth", "1"]
WORDS = st.sampled_from([*NAMES, *",(){}='\"\\ \n\0"])


@settings(max_examples=examples(50))
@given(st.text(max_size=30) | st.lists(WORDS, max_size=12).map("".join))
@example("pw-example{'}")
@example("\ud800")
@example("pw-example{policy=\ud800}")
def test_parse_pipeline_of_any_text_succeeds_or_names_the_mistake(text):
    error = None
    try:
        parse(text)
    except PipelineError as caught:
        error = caught
    if error is not None:
        assert error.text == text
        assert 1 <= error.column <= len(text) + 1
        assert error.message


def test_registry_finds_each_pass_under_its_name():
    for name in set(registry.names()) - {"pw-example"}:
        pass_type = registry.load(name)
        assert pass_type.name == name
        assert pass_type.__doc__, name
        assert parse(name) == [pass_type()]


def test_builtin_passes_exist():
    for name in registry.BUILTIN_PASSES:
        parse(name)
    for name in registry.REFUSED:
        PassManager.parse(f"builtin.module({name})", CONTEXT)
