"""The readable form of `pw` operations, as text to text; `test/tools/pw_opt/pretty.mlir` has examples."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways.dialect import OPERATIONS
from pathways.dialect.syntax.lexer import split
from pathways.dialect.syntax.pretty import FORMATS, pretty

ROUND_TRIP = Path(__file__).parent / "round_trip.mlir"


def test_pretty_formats_name_attributes_of_each_operation():
    assert FORMATS.keys() == OPERATIONS.keys()
    for name, form in FORMATS.items():
        fields = OPERATIONS[name].fields()
        named = set(re.findall(r"\$(\w+)", form))
        assert named - {"0"} <= fields.keys()
        outside = set(re.findall(r"\$(\w+)", re.sub(r"\[.*?\]", "", form))) - {"0"}
        assert all(fields[attribute].required for attribute in outside)


def test_pretty_loses_nothing_of_a_program():
    plain = [line for line in ROUND_TRIP.read_text().splitlines() if not line.lstrip().startswith("//")]
    for before, after in zip(plain, pretty("\n".join(plain)).split("\n"), strict=True):
        if '"pw.' not in before:
            assert after == before
            continue
        assert '"pw.' not in after
        signature = before[before.rindex(" : (") :].partition(" -> ")[0]
        for word in re.findall(r"@\w+|%\w+|\d+", before.removesuffix(signature).replace(": i64", "")):
            if word not in signature:
                assert word.lstrip("@") in after, word


@pytest.mark.parametrize(
    "line",
    [
        '"pw.unknown"() : () -> ()',
        '"pw.launch"(%x) {slice = @s} : (i32) -> i32',  # no callee
        '"pw.slice"() <{mesh = @m}> {sym_name = "s"} : () -> ()',
        '  %x = "pw.launch"(',
        '"pw.launch"() ({}) : () -> ()',
    ],
)
def test_pretty_keeps_unknown_lines(line):
    assert pretty(line) == line


@given(st.text())
def test_pretty_accepts_any_text(text):
    assert len(pretty(text).split("\n")) == len(text.split("\n"))
    assert ",".join(split(text, ",")) == (text if text.strip() else "")
