"""Random programs can be split over hosts: what comes out is checked, and its memory is accounted for."""

from __future__ import annotations

from host_programs import programs, scheduled, split
from hypothesis import assume, event, given, settings
from jaxlib.mlir import ir

from examples import examples
from pathways.dialect import ops_named, problems
from pathways.dialect.verification.forms import SPLIT

Program = tuple[str, list[int]]


def peaks(module: ir.Module) -> dict[str, int]:
    return {op.sym_name: op.peak_bytes for op in ops_named(module, ["pw.slice"])}


@settings(max_examples=examples(30), deadline=None)
@given(programs())
def test_split_hosts_gives_host_programs_without_deadlock(program: Program):
    text, hosts = program
    module = split(scheduled(text), hosts)
    event(f"transfers between hosts: {str(module).count('pw.send')}")
    assert problems(module, SPLIT) == []


@settings(max_examples=examples(40), deadline=None)
@given(programs())
def test_split_hosts_on_one_host_keeps_the_peaks(program: Program):
    text, hosts = program
    # A mirror that nothing reads makes the whole program take its operands.
    assume("pw.mirror" not in text)
    whole = scheduled(text)
    assert peaks(split(whole, [0] * len(hosts))) == peaks(whole)


@settings(max_examples=examples(20), deadline=None)
@given(programs())
def test_split_hosts_adds_equal_memory_for_each_step_ahead(program: Program):
    text, hosts = program
    whole = scheduled(text)
    one, two, three = (peaks(split(whole, hosts, ahead)) for ahead in (1, 2, 3))
    for name in one:
        assert three[name] - two[name] == two[name] - one[name] >= 0
