"""`pw-lsp` as editors use it: a process that is sent messages of the protocol, and what stands behind it."""

import asyncio
import contextlib
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways.tools.lsp.client import Analyst
from pathways.tools.lsp.index import Index
from pathways.tools.lsp.server import column_of
from pathways.tools.lsp.worker import analyse

TESTS = Path(__file__).parents[1]
MODULE = """\
// passes: pw-dce, pw-nothing
module @step attributes {pw.form = "placed"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s1"} : () -> ()
  func.func public @main(%x: tensor<2xf32> {pw.slice = @s0}) -> (tensor<2xf32> {pw.slice = @s1}) {
    %y:2 = "pw.launch"(%x) {callee = @two, slice = @s0} : (tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    %z = "pw.transfer"(%y#1) {slice = @s1} : (tensor<2xf32>) -> tensor<2xf32>
    return %z : tensor<2xf32>
  }
  func.func private @two(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    return %x, %x : tensor<2xf32>, tensor<2xf32>
  }
}
"""
LINES = MODULE.split("\n")
NUMBERS = itertools.count(1)


class Editor:
    """The other end of the protocol, which has opened one text."""

    def __init__(self):
        self.uri = "file:///0.mlir"
        self.server = subprocess.Popen(
            [sys.executable, "-m", "pathways.tools.pw_lsp", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._messages = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._count = 0

    def _listen(self):
        while header := self.server.stdout.readline():
            size = int(re.match(rb"(?i)content-length: (\d+)", header)[1])
            while self.server.stdout.readline().strip():
                pass
            self._messages.put(json.loads(self.server.stdout.read(size)))

    def end(self):
        self.server.kill()
        self.server.wait()
        self._listener.join()
        for stream in (self.server.stdin, self.server.stdout, self.server.stderr):
            with contextlib.suppress(OSError):
                stream.close()

    def send(self, **message):
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        self.server.stdin.flush()

    def request(self, method, **params):
        self._count += 1
        self.send(id=self._count, method=method, params=params)
        while (message := self._messages.get(timeout=60)).get("id") != self._count:
            pass
        return message["result"]

    def notify(self, method, **params):
        self.send(method=method, params=params)

    def open(self, text):
        self.notify(
            "textDocument/didOpen",
            textDocument={"uri": self.uri, "languageId": "mlir", "version": 1, "text": text},
        )

    def change(self, version, *changes):
        self.notify(
            "textDocument/didChange",
            textDocument={"uri": self.uri, "version": version},
            contentChanges=changes,
        )

    def diagnostics(self, version=None):
        """Returns the next diagnostics of the text."""
        while True:
            message = self._messages.get(timeout=60)
            params = message.get("params", {})
            here = message.get("method") == "textDocument/publishDiagnostics" and params["uri"] == self.uri
            if here and version in (None, params.get("version")):
                return params["diagnostics"]

    def at(self, method, line, word, **more):
        """Asks about a word of a line."""
        column = LINES[line].index(word) + 1
        return self.request(
            method, textDocument={"uri": self.uri}, position={"line": line, "character": column}, **more
        )


def started():
    editor = Editor()
    editor.request("initialize", processId=None, rootUri=None, capabilities={})
    editor.notify("initialized")
    yield editor
    editor.end()


own_editor = pytest.fixture(started)
shared_editor = pytest.fixture(started, scope="module")


@pytest.fixture
def editor(shared_editor):
    """The editor, and with it the server, that all tests have, with a text that none has opened."""
    shared_editor.uri = f"file:///{next(NUMBERS)}.mlir"
    return shared_editor


def span(place):
    """Line, first and last column of a range."""
    start, end = place["start"], place["end"]
    assert start["line"] == end["line"]
    return start["line"], start["character"], end["character"]


def position(line, character):
    return {"line": line, "character": character}


@pytest.mark.quick
@pytest.mark.process
def test_pw_lsp_diagnoses_what_is_typed(editor):
    editor.open(MODULE)
    assert editor.diagnostics() == []
    # The same text with one letter more: only that is sent.
    place = position(6, LINES[6].index("@two") + 4)
    editor.change(2, {"range": {"start": place, "end": place}, "text": "o"})
    (problem,) = editor.diagnostics(version=2)
    assert "`callee` refers to @twoo, which is not in the module" in problem["message"]
    assert (problem["severity"], problem["source"]) == (1, "pw")
    assert span(problem["range"]) == (6, 11, 22)  # "pw.launch"
    editor.change(3, {"text": MODULE.replace("return %z", "return %zz")})
    (problem,) = editor.diagnostics(version=3)
    assert problem["message"] == "use of undeclared SSA value name"
    assert span(problem["range"]) == (8, 11, 14)
    editor.change(4, {"text": MODULE})
    assert editor.diagnostics(version=4) == []
    editor.notify("textDocument/didClose", textDocument={"uri": editor.uri})
    assert editor.diagnostics() == []


def test_pw_lsp_counts_columns_as_editors_do(editor):
    # MLIR counts bytes, editors count pairs of bytes of UTF-16.
    editor.open('module {\n  "a"() {x = "\N{MATHEMATICAL ITALIC SMALL X}é"} : () -> (); %a = foo\n}')
    (problem,) = editor.diagnostics()
    assert span(problem["range"])[:2] == (1, 30)


def test_column_of_reads_a_long_line_a_few_times():
    read = 0

    def units(text):
        nonlocal read
        read += len(text)
        return len(text.encode("utf-16-le")) // 2

    line = "x\N{MATHEMATICAL ITALIC SMALL X}" * 2000
    # Each pair of characters has three units.
    assert [column_of(line, n, units) for n in (0, 1, 3, 4499, 6000, 9999)] == [0, 1, 2, 3000, 4000, 4000]
    assert read < 6 * 12 * len(line)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("line", "word", "expected"),
    [
        (6, "pw.launch", r"\*\*`pw.launch`\*\*\n\nA gang-scheduled execution .* `callee`: The computation"),
        (
            6,
            "callee",
            r"\*\*`pw.launch`\*\* `callee`: The computation.\n\nflat symbol reference to a `func.func`",
        ),
        (0, "pw-dce", r"\*\*`pw-dce`\*\*\n\n"),
        (6, "@two", r"```mlir\nfunc.func private @two\(.*\n```"),
        (3, '"s0"', r'```mlir\n"pw.slice"\(\) \{mesh = @mesh, sym_name = "s0"\}.*\n```'),
        (6, "%x", "`tensor<2xf32>` on `@s0`  \nargument #0 of `@main`  \nmodule in the form `placed`"),
        (
            7,
            "%y#1",
            "`tensor<2xf32>` on `@s0`  \nresult of `pw.launch`, of `@two`  \nmodule in the form `placed`",
        ),
        (8, "%z", "`tensor<2xf32>` on `@s1`  \nresult of `pw.transfer`  \nmodule in the form `placed`"),
        (11, "%x", "`tensor<2xf32>`  \nargument #0 of `@two`  \nmodule in the form `placed`"),
    ],
)
def test_pw_lsp_hovers(editor, line, word, expected):
    editor.open(MODULE)
    assert editor.diagnostics() == []
    hover = editor.at("textDocument/hover", line, word)
    assert re.match(expected, hover["contents"]["value"], re.DOTALL)


def test_pw_lsp_hovers_over_nothing_else(editor):
    editor.open(MODULE)
    assert editor.diagnostics() == []
    assert editor.at("textDocument/hover", 0, "pw-nothing") is None
    assert editor.at("textDocument/hover", 8, "return") is None
    assert (
        editor.request("textDocument/hover", textDocument={"uri": editor.uri}, position=position(99, 9))
        is None
    )
    assert (
        editor.request("textDocument/hover", textDocument={"uri": "file:///n"}, position=position(0, 0))
        is None
    )


def test_pw_lsp_finds_names_in_broken_text(editor):
    editor.open(MODULE.replace("return %z : tensor<2xf32>", "return %z : ten"))
    assert len(editor.diagnostics()) == 1
    hover = editor.at("textDocument/hover", 8, "%z")["contents"]["value"]
    assert hover == f"```mlir\n{LINES[7].strip()}\n```"
    assert span(editor.at("textDocument/definition", 8, "%z")["range"]) == (7, 4, 6)


def test_pw_lsp_finds_definitions_references_and_symbols(editor):
    editor.open(MODULE)
    places = {
        (7, "%y#1"): (6, 4, 6),
        (6, "%x"): (5, 25, 27),
        (11, "%x"): (10, 25, 27),
        (6, "@two"): (10, 20, 24),
        (6, "@s0"): (3, 41, 45),
        (3, "@mesh"): (2, 11, 16),
    }
    for (line, word), place in places.items():
        found = editor.at("textDocument/definition", line, word)
        assert (found["uri"], span(found["range"])) == (editor.uri, place)
    assert editor.at("textDocument/definition", 8, "return") is None
    places = editor.at("textDocument/references", 10, "%x", context={"includeDeclaration": True})
    assert [span(place["range"]) for place in places] == [(10, 25, 27), (11, 11, 13), (11, 15, 17)]
    places = editor.at("textDocument/references", 4, '"s1"', context={"includeDeclaration": False})
    assert [span(place["range"])[0] for place in places] == [5, 7]
    symbols = editor.request("textDocument/documentSymbol", textDocument={"uri": editor.uri})
    assert [(symbol["name"], symbol["detail"]) for symbol in symbols] == [
        ("@step", "module"),
        ("@mesh", "sdy.mesh"),
        ("@s0", "pw.slice"),
        ("@s1", "pw.slice"),
        ("@main", "func.func"),
        ("@two", "func.func"),
    ]


def test_pw_lsp_makes_a_crash_of_mlir_a_diagnostic(editor):
    crashing = (TESTS / "fuzz" / "stock" / "parser_while_reads_itself.mlir").read_text()
    for n in range(3):
        editor.uri = f"file:///crash{n}.mlir"
        editor.open(crashing)
        (problem,) = editor.diagnostics()
        assert problem["message"] == "MLIR crashed (SIGSEGV) while reading this"
        assert problem["range"]["start"] == position(0, 0)
    editor.uri = "file:///whole.mlir"
    editor.open(MODULE)
    assert editor.diagnostics() == []


def test_pw_lsp_checks_the_last_of_many_texts(editor):
    editor.open(MODULE)
    for version in range(2, 30):
        editor.change(version, {"text": MODULE.replace("@two}", f"@none_{version}")})
    editor.change(30, {"text": MODULE})
    assert editor.diagnostics(version=30) == []


@pytest.mark.quick
@pytest.mark.process
@pytest.mark.parametrize("politely", [True, False])
def test_pw_lsp_ends_with_its_editor(own_editor, politely):
    editor = own_editor
    editor.open(MODULE)
    assert editor.diagnostics() == []
    if politely:
        assert editor.request("shutdown") is None
        editor.send(method="exit")
    else:
        editor.server.stdin.close()
    assert editor.server.wait(timeout=30) == 0
    assert editor.server.stderr.read() == b""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\N{NULL}",
        "\ud800 %x",
        "module {" * 5000,
        '"',
        "// -----\n" * 50,
        '%a = "x',
        "\r\n\x0b\x0c\u2028%x\n%",
    ],
)
def test_pw_lsp_survives_strange_texts(editor, text):
    editor.open(text)
    editor.diagnostics()
    editor.request("textDocument/hover", textDocument={"uri": editor.uri}, position=position(0, 1))
    editor.request("textDocument/documentSymbol", textDocument={"uri": editor.uri})
    editor.change(2, {"text": MODULE})
    assert editor.diagnostics(version=2) == []


@pytest.mark.process
def test_analyst_reports_a_parse_that_takes_too_long():
    async def analyse():
        analyst = Analyst(1e-6)
        slow = await analyst.analyse(MODULE)
        analyst = Analyst(60)
        fine = await analyst.analyse(MODULE)
        await analyst.close()
        return slow, fine

    slow, fine = asyncio.run(analyse())
    assert [d["message"] for d in slow["diagnostics"]] == [
        "MLIR did not return within 1e-06 s while reading this"
    ]
    assert fine["diagnostics"] == []


@pytest.mark.parametrize(
    "path", sorted((TESTS / "dialect").glob("*_invalid.mlir")), ids=lambda path: path.stem
)
def test_analyse_gives_every_error_of_the_verifier_its_line(path):
    found = [(d["line"], d["message"]) for d in analyse(path.read_bytes())["diagnostics"]]
    expected = 0
    for number, line in enumerate(path.read_text().split("\n"), 1):
        for where, message in re.findall(r"expected-error ?@(below|\+1) \{\{(.*)\}\}$", line):
            expected += 1
            ahead = range(number + 1, number + 4 if where == "below" else number + 2)
            assert any(at in ahead and message in error for at, error in found), (number, message)
    assert expected


def test_analyse_ignores_locations_in_other_files():
    wrong = '"pw.slice"() {sym_name = "s"} : () -> () loc(#loc1)'
    text = f'module {{\n  {wrong}\n}} loc(unknown)\n#loc1 = loc("f.py":7:7)'
    (problem,) = analyse(text.encode())["diagnostics"]
    assert (problem["line"], problem["column"]) == (2, 3)


@pytest.mark.parametrize("path", sorted((TESTS / "passes").rglob("*.mlir")), ids=lambda path: path.stem)
def test_index_defines_every_value(path):
    index = Index(path.read_text())
    for line in range(len(index.lines)):
        for token in index.tokens(line):
            if token.text.startswith("%"):
                assert index.definition(token) is not None, (line + 1, token.text)


@given(st.text(st.sampled_from('%@#"(){}:=,ax0\n /-_\\é𝒚')) | st.text())
def test_index_reads_any_text(text):
    index = Index(text)
    for line in range(len(index.lines)):
        for token in index.tokens(line):
            assert index.lines[line][token.start : token.end] == token.text
            assert index.at(line, token.end) is not None
            index.references(token)


@pytest.mark.process
def test_pw_lsp_names_the_extra_that_is_missing(tmp_path):
    (tmp_path / "pygls.py").write_text("raise ImportError")
    done = subprocess.run(
        [sys.executable, "-m", "pathways.tools.pw_lsp"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "pw-lsp: error: pygls is not installed; it is in an extra: pip install 'pathways-mlir[lsp]'\n",
    )
