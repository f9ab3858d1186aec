"""Gangs: the transitions between their states, and their log lines."""

from __future__ import annotations

import itertools
import logging
import re
from pathlib import Path

import pytest

from pathways.runtime.control.effects import AttachGang, Log, RequestExit, RestartGang
from pathways.runtime.control.gang import (
    MAX_RESTARTS,
    TRANSITIONS,
    Dead,
    Drained,
    Draining,
    Gang,
    Pausing,
    Replaced,
    Restarting,
    Running,
    State,
    Terminating,
)
from pathways.runtime.control.records.errors import ClusterClosedError, HostLeavingError, HostLostError
from pathways.runtime.control.records.events import (
    DrainRequested,
    ExitOverdue,
    GangClosed,
    GangDrained,
    GangEvent,
    GangKey,
    GangStarted,
    GangStartFailed,
    GangTerminated,
    HostLost,
    LeaveRequested,
    RestartDue,
    ReturnRequested,
)

KEY = GangKey(3, 0)
DRAIN = DrainRequested(KEY, "drained", 60.0, stays_out=True)
ENDED = HostLost(KEY, 7, "its process has ended (killed by signal 9)")
EVENTS: dict[type[GangEvent], GangEvent] = {
    type(event): event
    for event in (
        LeaveRequested(KEY, 7),
        DRAIN,
        ReturnRequested(KEY),
        ENDED,
        GangDrained(KEY),
        ExitOverdue(KEY),
        GangTerminated(KEY),
        GangStarted(KEY),
        GangStartFailed(KEY, "there is no place"),
        RestartDue(KEY),
        GangClosed(KEY, "is closed"),
    )
}
TO: dict[type[State], list[GangEvent]] = {
    Running: [],
    Draining: [EVENTS[LeaveRequested]],
    Terminating: [EVENTS[LeaveRequested], EVENTS[GangDrained]],
    Restarting: [ENDED],
    Pausing: [ENDED, EVENTS[GangTerminated], EVENTS[GangStartFailed]],
    Replaced: [ENDED, EVENTS[GangTerminated], EVENTS[GangStarted]],
    Dead: [EVENTS[GangClosed]],
    Drained: [DRAIN, ENDED],
}
"""The events that lead to each state."""


def gang(*hosts: int, restarts: int = 0) -> Gang:
    return Gang(KEY, hosts or (7,), ahead=4, grace=20.0, now=0.0, restarts=restarts)


def after(*events: GangEvent, hosts: tuple[int, ...] = (7,)) -> Gang:
    one = gang(*hosts)
    for event in events:
        one.handle(event, 1.0)
    return one


def texts(effects: list[object]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Log)]


def test_gang_reaches_each_state():
    for state, events in TO.items():
        assert type(after(*events).state) is state


def test_gang_has_five_states_for_users():
    """A gang that another one may replace is restarting, also between two tries."""
    assert {state.__name__: after(*events).state_name() for state, events in TO.items()} == {
        "Running": "running",
        "Draining": "leaving",
        "Terminating": "leaving",
        "Restarting": "restarting",
        "Pausing": "restarting",
        "Replaced": "restarting",
        "Dead": "lost",
        "Drained": "drained",
    }


@pytest.mark.parametrize("state", [state for state in TO if state is not Replaced], ids=lambda s: s.__name__)
def test_gang_accepts_events_from_outside_in_every_state(state: type[State]):
    """Hosts exit, receive signals, and are closed at any time."""
    for event in (LeaveRequested, HostLost, GangClosed):
        assert (state, event) in TRANSITIONS
        after(*TO[state]).handle(EVENTS[event], 2.0)


@pytest.mark.parametrize("state", [Restarting, Dead], ids=lambda state: state.__name__)
def test_gang_accepts_results_of_its_requests_when_they_come_late(state: type[State]):
    """The results are accepted when they are no longer needed, too."""
    for event in (GangTerminated, GangStarted, GangStartFailed):
        after(*TO[state]).handle(EVENTS[event], 2.0)


def test_gang_transitions_are_drawn_in_the_manual():
    """An arrow is a row that leads to another state: of one host or two, lost often or not, soon or late."""
    text = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()
    drawn = set(re.findall(r"^  (\w+) --> (\w+): (\w+)$", text, re.MULTILINE))
    arrows = set()
    for (state, event), hosts, restarts, late, begin in itertools.product(
        TRANSITIONS, ((7,), (7, 8)), (0, MAX_RESTARTS), (1.0, 1e3), (EVENTS[LeaveRequested], DRAIN)
    ):
        one = gang(*hosts, restarts=restarts)
        for each in TO[state]:
            one.handle(begin if isinstance(each, LeaveRequested) else each, 1.0)
        if type(one.state) is not state:
            continue
        one.handle(EVENTS[event], late)
        arrows.add((state.__name__, type(one.state).__name__, event.__name__))
    assert drawn == {arrow for arrow in arrows if arrow[0] != arrow[1]}


def test_gang_refuses_impossible_events():
    one = after(*TO[Replaced])
    with pytest.raises(AssertionError, match="island3 is Replaced, and accepts no GangTerminated"):
        one.handle(EVENTS[GangTerminated], 2.0)
    assert type(one.state) is Replaced


def test_gang_transitions_lead_to_known_states():
    for state, event in TRANSITIONS:
        one = after(*TO[state])
        one.handle(EVENTS[event], 2.0)
        assert type(one.state) in TO


def test_gang_that_is_lost_is_terminated_and_replaced():
    one = gang()
    assert texts(one.handle(ENDED, 5.0)) == [
        "host 7 (island3) is lost: its process has ended (killed by signal 9)"
    ]
    with pytest.raises(HostLostError, match="host 7"):
        one.check()
    # Other reports are about the end of the same process.
    assert one.handle(ENDED, 5.1) == []
    assert RestartGang(KEY, 15.0) in one.handle(GangTerminated(KEY), 6.0)
    assert AttachGang(GangKey(3, 1)) in one.handle(GangStarted(KEY), 9.0)
    assert isinstance(one.state, Replaced)
    # Its arrays stay lost.
    with pytest.raises(HostLostError, match="host 7"):
        one.check()


def test_gang_that_drains_accepts_nothing_new_and_can_be_read():
    one = gang(7, 8)
    (line,) = texts(one.handle(LeaveRequested(KEY, 8), 5.0))
    assert line == (
        "host 8 (island3) is leaving: its process received SIGTERM; its island accepts nothing "
        "more; its arrays can be read for up to 20 seconds"
    )
    assert one.handle(LeaveRequested(KEY, 7), 6.0) == []
    one.check()
    with pytest.raises(HostLeavingError, match="host 8"):
        one.check_open()
    assert one.state == Draining(8, "its process received SIGTERM", 20.0, 25.0)


def test_gang_that_drains_accepts_steps_while_a_client_delays_it():
    one = gang()
    one.delay_leave(1)
    (line,) = texts(one.handle(LeaveRequested(KEY, 7), 5.0))
    assert line == (
        "host 7 (island3) is leaving: its process received SIGTERM; its island goes on for up to 20 seconds "
        "while training moves off it"
    )
    assert one.state_name() == "draining"
    one.check_open()
    assert one.leaving is not None
    one.delay_leave(-1)
    with pytest.raises(HostLeavingError, match="host 7"):
        one.check_open()
    # Its time is bounded, whatever clients say.
    one.delay_leave(1)
    one.handle(GangDrained(KEY, ", and was not done"), 25.0)
    with pytest.raises(HostLeavingError, match="host 7"):
        one.check_open()


def test_gang_that_is_drained_stays_out_until_a_user_requests_it():
    one = gang()
    (line,) = texts(one.handle(DRAIN, 5.0))
    assert line == (
        "host 7 (island3) is leaving: drained; its island accepts nothing more; its arrays can be read for "
        "up to 60 seconds"
    )
    one.handle(GangDrained(KEY), 6.0)
    assert texts(one.handle(ExitOverdue(KEY), 8.0)) == ["host 7 (island3) has left: drained"]
    assert one.is_out
    assert not one.is_replaced_soon()
    assert one.handle(GangTerminated(KEY), 8.1) == []
    assert RestartGang(KEY, 120.0) in one.handle(ReturnRequested(KEY), 9.0)
    assert AttachGang(GangKey(3, 1)) in one.handle(GangStarted(KEY), 10.0)


def test_gang_that_returns_waits_for_the_end_of_its_processes():
    """Otherwise two starts would be for the same machines."""
    one = after(DRAIN, ENDED)
    assert not any(isinstance(effect, RestartGang) for effect in one.handle(ReturnRequested(KEY), 9.0))
    assert RestartGang(KEY, 15.0) in one.handle(GangTerminated(KEY), 9.5)


def test_gang_that_cannot_return_is_out_again():
    one = after(DRAIN, ENDED, EVENTS[GangTerminated], EVENTS[ReturnRequested])
    one.handle(GangStartFailed(KEY, "there is no place", is_final=True), 400.0)
    assert one.is_out
    assert RestartGang(KEY, 120.0) in one.handle(ReturnRequested(KEY), 500.0)


def test_signal_shortens_a_drain():
    """The platform that sends it kills the process after the grace period."""
    one = after(DRAIN, EVENTS[LeaveRequested])
    assert one.state == Draining(7, "drained", 60.0, 21.0, stays_out=True)


def test_gang_is_not_lost_when_processes_exit_as_requested():
    """Several hosts may notice it, in any order: the gang has left when all its processes have exited."""
    one = after(LeaveRequested(KEY, 8), hosts=(7, 8))
    assert one.handle(GangDrained(KEY), 9.0) == [RequestExit(KEY)]
    for host in (8, 8):
        assert one.handle(HostLost(KEY, host, "its process has ended (exit code 0)"), 9.1) == []
    assert texts(one.handle(HostLost(KEY, 7, "its process has ended (exit code 0)"), 9.2)) == [
        "host 8 (island3) has left: its process received SIGTERM"
    ]


def test_gang_leaves_though_its_processes_do_not_end():
    unfinished = ", and was not done with step 4 of program f after 20 seconds"
    one = after(LeaveRequested(KEY, 7), GangDrained(KEY, unfinished))
    (line,) = texts(one.handle(ExitOverdue(KEY), 11.0))
    assert line == f"host 7 (island3) has left: its process received SIGTERM{unfinished}"


def test_gang_is_lost_when_a_process_ends_before_it_has_drained():
    one = after(LeaveRequested(KEY, 7))
    (line,) = texts(one.handle(ENDED, 9.0))
    assert line.startswith("host 7 (island3) is lost")


def test_gang_that_is_lost_again_and_again_is_given_up():
    one = gang()
    for _ in range(MAX_RESTARTS):
        one.handle(ENDED, 0.0)
        assert RestartGang(one.key, 15.0) in one.handle(GangTerminated(KEY), 0.0)
        one.handle(GangStarted(KEY), 0.0)
        one = one.successor(0.0)
    one.handle(ENDED, 0.0)
    (line,) = texts(one.handle(GangTerminated(KEY), 0.0))
    assert line == ("island3: it is not restarted, because it was lost 3 times before it had done a step")
    assert one.is_dead()
    with pytest.raises(HostLostError, match=r"is lost: its process has ended.*; it is not restarted"):
        one.check()


def test_gang_that_has_no_steps_is_restarted_whenever_it_is_lost():
    """Some only keep copies of what others compute."""
    one, now = gang(), 0.0
    for _ in range(2 * MAX_RESTARTS):
        now += 121.0
        one.handle(HostLost(one.key, 7, "its process has ended"), now)
        assert RestartGang(one.key, 15.0) in one.handle(GangTerminated(KEY), now)
        one.handle(GangStarted(KEY), now)
        one = one.successor(now)


def test_gang_is_restarted_whenever_a_program_is_charged_with_its_loss():
    one = gang()
    for _ in range(2 * MAX_RESTARTS):
        one.handle(HostLost(one.key, 7, "its process has ended", is_charged=True), 0.0)
        assert RestartGang(one.key, 15.0) in one.handle(GangTerminated(KEY), 0.0)
        one.handle(GangStarted(KEY), 0.0)
        one = one.successor(0.0)


def test_gang_retries_a_failed_start_until_its_deadline():
    """Each start gets more time; the user is warned once, and at the end."""
    one = gang()
    one.handle(ENDED, 0.0)
    one.handle(GangTerminated(KEY), 0.0)
    now, contacts, lines = 0.0, [], []
    while not one.is_dead():
        effects = one.handle(GangStartFailed(KEY, "it cannot be restarted: no route"), now)
        lines += [
            effect.text for effect in effects if isinstance(effect, Log) and effect.level >= logging.WARNING
        ]
        if isinstance(one.state, Pausing):
            assert one.is_replaced_soon()
            now = one.state.again
            (start,) = one.handle(RestartDue(KEY), now)
            contacts.append(start.seconds)
            now += 15.0
    assert contacts[:5] == [30.0, 60.0, 120.0, 120.0, 120.0]
    assert contacts[-1] < 20
    assert 300 < now < 315
    assert lines == [
        "island3: it cannot be restarted: no route; retrying for 300 seconds",
        "island3: it cannot be restarted: no route",
    ]
    with pytest.raises(HostLostError, match=r"killed by signal 9\); it cannot be restarted: no route"):
        one.check()


def test_gang_does_not_retry_after_a_final_failure():
    one = after(ENDED, EVENTS[GangTerminated])
    one.handle(GangStartFailed(KEY, "it came back with different devices", is_final=True), 1.0)
    assert one.is_dead()


def test_gang_that_is_cut_off_again_and_again_is_given_up_after_some_time():
    """The number of losses does not matter; the time since the first one does."""
    one, now, starts = gang(), 0.0, 0
    while True:
        one.handle(HostLost(one.key, 7, "it has not responded for 10 seconds", is_cut=True), now)
        one.handle(GangTerminated(KEY), now)
        if one.is_dead():
            break
        one.handle(GangStarted(KEY), now)
        one, now, starts = one.successor(now), now + 20.0, starts + 1
    assert starts > MAX_RESTARTS
    assert 300 < now <= 320
    with pytest.raises(
        HostLostError, match="not restarted, because it was cut off again and again for 320 seconds"
    ):
        one.check()


@pytest.mark.parametrize("leaves", [False, True])
def test_gang_that_did_a_step_or_left_counts_no_restarts(leaves: bool):
    one = gang(restarts=MAX_RESTARTS)
    if leaves:
        one.handle(LeaveRequested(KEY, 7), 1.0)
    else:
        one.pulses[7].progressed = 1.0
    one.handle(ENDED, 2.0)
    assert RestartGang(KEY, 15.0) in one.handle(GangTerminated(KEY), 3.0)


def test_gang_that_is_closed_is_not_replaced():
    for events in TO.values():
        one = after(*events)
        if isinstance(one.state, Replaced):
            continue
        was_lost = one.failure is not None
        assert texts(one.handle(GangClosed(KEY, "is closed"), 3.0)) == []
        assert one.is_dead()
        with pytest.raises(
            HostLostError if was_lost and EVENTS[GangClosed] not in events else ClusterClosedError
        ):
            one.check()
        for answer in (GangTerminated, GangStarted, GangStartFailed):
            assert one.handle(EVENTS[answer], 4.0) == []
