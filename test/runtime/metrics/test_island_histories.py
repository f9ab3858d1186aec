"""Use of islands in the last minute, from snapshots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from status_samples import client, snapshot

from examples import examples
from pathways.runtime.metrics.snapshots import STRIP_SECONDS, History, held_of
from pathways.runtime.resources.accounts import REST

ANN, BOB = ("ann", "island0"), ("bob", "island0")


def history(*snapshots: object) -> History:
    found = History()
    for each in snapshots:
        found.add(each)
    return found


def test_clients_have_the_fractions_of_the_time_that_their_steps_took():
    used = [{ANN: 5.0}, {ANN: 5.5, BOB: 0.25}, {ANN: 5.5, BOB: 1.0}]
    seen = history(*(snapshot(n, totals) for n, totals in enumerate(used)))
    assert [each.used for each in seen.intervals] == [
        {"island0": {"ann": 0.5, "bob": 0.25}},
        {"island0": {"bob": 0.75}},
    ]
    assert seen.shares("island0") == {"ann": 0.25, "bob": 0.5}
    assert seen.shares("island1") == {}


def test_a_long_step_was_there_before_it_ended():
    seen = history(*(snapshot(n, {ANN: 0.0}) for n in range(4)), snapshot(4, {ANN: 2.5}))
    assert [each.used.get("island0", {}).get("ann", 0.0) for each in seen.intervals] == [0.0, 0.5, 1.0, 1.0]


def test_clients_keep_their_colours_and_leave_them_to_others():
    seen = history(snapshot(0), snapshot(1, {ANN: 0.5, BOB: 0.5}))
    assert seen.colours == {"ann": 0, "bob": 1}
    for second in range(2, 70):
        seen.add(snapshot(second, {ANN: 0.5, BOB: 0.5 * second}))
    assert seen.colours == {"bob": 1}
    seen.add(snapshot(70, {ANN: 0.5, BOB: 40.0}, clients=(client("cid"),)))
    assert seen.colours == {"bob": 1, "cid": 0}


def test_accounts_that_were_added_to_others_are_no_use_now():
    seen = history(snapshot(0, {ANN: 5.0}), snapshot(1, {(REST, "island0"): 5.0}))
    assert seen.shares("island0") == {}


def test_an_earlier_snapshot_is_the_latest_only():
    """The clock of the service was set back."""
    seen = history(snapshot(10, {ANN: 1.0}), snapshot(5, {ANN: 2.0}), snapshot(6, {ANN: 2.5}))
    assert seen.latest == snapshot(6, {ANN: 2.5})
    assert [(each.seconds, each.used) for each in seen.intervals] == [(1.0, {"island0": {"ann": 0.5}})]


def test_held_bytes_are_those_of_all_islands():
    accounts = snapshot(0, {ANN: 1.0, ("ann", "island1"): 1.0, BOB: 0.0}).accounts
    assert held_of(accounts) == {"ann": 2048, "bob": 1024}


INTERVALS = st.tuples(
    st.floats(0.1, 20.0),
    st.dictionaries(st.tuples(st.sampled_from("abc"), st.just("island0")), st.floats(0, 30.0)),
)
"""Seconds between two snapshots, and device seconds of clients."""


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(INTERVALS, max_size=30))
def test_islands_are_never_used_more_than_all_the_time(steps):
    seen, now, totals, added = History(), 0.0, {}, 0.0
    for seconds, used in steps:
        now += seconds
        for key, more in used.items():
            totals[key] = totals.get(key, 0.0) + more
            added += more
        seen.add(snapshot(now, totals))
        assert all(sum(each.used.get("island0", {}).values()) <= 1 + 1e-9 for each in seen.intervals)
        assert all(each.end >= seen.latest.status.time - STRIP_SECONDS for each in seen.intervals)
    counted = sum(sum(each.used.get("island0", {}).values()) * each.seconds for each in seen.intervals)
    assert counted <= added + 1e-6
    assert sum(seen.shares("island0").values()) <= 1 + 1e-9
    assert {name for each in seen.intervals for name in each.used.get("island0", {})} <= seen.colours.keys()


@pytest.mark.parametrize("count", [1, 1000])
def test_a_history_has_a_limit(count):
    seen = history(*(snapshot(n / 100) for n in range(count)))
    assert len(seen.intervals) <= 240
