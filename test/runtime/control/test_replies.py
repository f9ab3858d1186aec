"""Requests get their own answers or the reason for none, and nothing is kept of them."""

from __future__ import annotations

import collections

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pathways.runtime.control.records.errors import lost
from pathways.runtime.control.records.replies import HostRequest, PendingReplies

LOST = lost("host 1 (island1) is lost: of a test")


def test_replies_of_all_hosts_complete_a_request():
    replies = PendingReplies()
    request = replies.create_request([0, 1])
    assert replies.receive(1, request.number, "b") is None
    assert replies.get(request.number) is request
    assert replies.receive(0, request.number, "a") is request
    assert request.is_done()
    assert request.answers == {0: ["a"], 1: ["b"]}
    assert len(replies) == 0


def test_replies_may_come_in_pieces():
    replies = PendingReplies()
    request = replies.create_request([0])
    assert replies.receive(0, request.number, "a", is_last=False) is None
    assert replies.receive(0, request.number, "b") is request
    assert request.answers == {0: ["a", "b"]}


def test_replies_that_are_late_do_not_answer_the_next_request():
    """A host would be ended or released for a state that it was in before."""
    replies = PendingReplies()
    first = replies.create_request([0], deadline=2.0)
    assert replies.expire(1.9) == []
    assert replies.expire(2.0) == [first]
    assert first.answers == {}
    second = replies.create_request([0], deadline=4.0)
    assert replies.receive(0, first.number, "late") is None
    assert second.answers == {}
    assert replies.receive(0, second.number, "in time") is second
    assert second.answers == {0: ["in time"]}


def test_replies_that_are_repeated_or_of_other_hosts_change_nothing():
    replies = PendingReplies()
    request = replies.create_request([0, 1])
    for value in ("a", "again"):
        replies.receive(0, request.number, value)
        replies.receive(2, request.number, value)
    assert request.answers == {0: ["a"]}
    assert not request.is_done()


def test_replies_of_lost_hosts_are_failures():
    """Answers of the other hosts are kept, and the request is pending until they have come."""
    replies = PendingReplies()
    alone, both, other = (
        replies.create_request([1]),
        replies.create_request([0, 1]),
        replies.create_request([0]),
    )
    assert replies.lose([1], LOST) == [alone]
    assert alone.first_failure() == [(1, LOST)]
    assert replies.receive(0, both.number, "a") is both
    assert (both.answers, both.failures) == ({0: ["a"]}, {1: LOST})
    assert replies.receive(1, both.number, "late") is None
    assert other.first_failure() == []
    assert len(replies) == 1


def test_replies_to_no_hosts_or_dropped_requests_are_not_pending():
    replies = PendingReplies()
    assert replies.create_request([]).is_done()
    request = replies.create_request([0])
    replies.drop(request)
    replies.drop(request)
    assert replies.receive(0, request.number, "unwanted") is None
    assert len(replies) == 0


HOSTS = st.integers(0, 3)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.frozensets(HOSTS), st.none() | st.floats(0, 9)),
        st.tuples(st.just("receive"), HOSTS, st.integers(0, 30), st.booleans()),
        st.tuples(st.just("lose"), st.frozensets(HOSTS, min_size=1)),
        st.tuples(st.just("expire"), st.floats(0, 9)),
        st.tuples(st.just("drop"), st.integers(0, 30)),
    ),
    max_size=40,
)


@given(ACTS)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_replies_end_each_request_once_with_its_own_answers(acts):
    replies, requests, ended = PendingReplies(), list[HostRequest](), collections.Counter[int]()
    expected: dict[int, dict[int, list[object]]] = {}
    for act in acts:
        done: list[HostRequest | None] = []
        match act:
            case "create", hosts, deadline:
                requests.append(replies.create_request(hosts, deadline))
                expected[requests[-1].number] = {}
                ended[requests[-1].number] += requests[-1].is_done()
            case "receive", host, number, is_last:
                request = replies.get(number)
                if request is not None and host in request.hosts and host in request._pending:
                    expected[number].setdefault(host, []).append(act)
                done = [replies.receive(host, number, act, is_last=is_last)]
            case "lose", hosts:
                done = [*replies.lose(hosts, LOST)]
            case "expire", now:
                done = [*replies.expire(now)]
            case "drop", number if request := replies.get(number):
                replies.drop(request)
                ended[number] += 1
        for request in done:
            if request is not None:
                ended[request.number] += 1
                assert request.is_done()
    for request in requests:
        assert request.answers == expected[request.number]
        assert ended[request.number] == (replies.get(request.number) is None)
    assert len(replies) == sum(not ended[request.number] for request in requests)
    assert all(done.is_done() for done in replies.lose(range(4), LOST))
    assert len(replies) == 0
