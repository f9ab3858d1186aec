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


def test_every_operation_has_a_format_of_its_own_attributes():
    assert FORMATS.keys() == OPERATIONS.keys()
    for name, form in FORMATS.items():
        fields = OPERATIONS[name].fields()
        named = set(re.findall(r"\$(\w+)", form))
        assert named - {"0"} <= fields.keys()
        outside = set(re.findall(r"\$(\w+)", re.sub(r"\[.*?\]", "", form))) - {"0"}
        assert all(fields[attribute].required for attribute in outside)


def test_all_that_a_program_says_is_still_there():
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
def test_what_it_does_not_know_stays(line):
    assert pretty(line) == line


@given(st.text())
def test_any_text_is_taken(text):
    assert len(pretty(text).split("\n")) == len(text.split("\n"))
    assert ",".join(split(text, ",")) == (text if text.strip() else "")
