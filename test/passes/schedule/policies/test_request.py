"""Schedules as programs name them: a policy, and what it keeps to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways.passes.schedule.policies.registry import NAMES, SEARCH
from pathways.passes.schedule.policies.request import RequestError, ScheduleRequest, read_request


def test_read_request_reads_a_policy_and_its_options():
    assert read_request("zb-h1") == ScheduleRequest("zb-h1")
    assert read_request(" zb-h1( max-live = 4, times=times.json ) ") == ScheduleRequest(
        "zb-h1", max_live=4, times="times.json"
    )
    request = read_request("search(max-bytes=1.5KiB, max-pending=2, seconds=0.5, seed=0, solver=cp-sat)")
    assert request == ScheduleRequest(SEARCH, max_bytes=1536, max_pending=2, seconds=0.5, solver="cp-sat")
    assert read_request("zb-v(recompute=true)").recompute


requests = st.builds(
    ScheduleRequest,
    st.sampled_from(NAMES),
    max_live=st.integers(0, 99),
    max_pending=st.integers(0, 99),
    max_bytes=st.integers(0, 1 << 40),
    times=st.sampled_from(["", "flops", "a/b.json"]),
    recompute=st.booleans(),
) | st.builds(
    ScheduleRequest,
    st.sampled_from(NAMES),
    times=st.just("units"),
    latency=st.sampled_from(["", "2", "5us"]),
    bandwidth=st.sampled_from(["", "1e3", "10GB/s"]),
)


@given(requests, st.integers(0, 9), st.sampled_from([0.0, 0.25, 60.0]))
def test_read_request_reads_written_requests(request_: ScheduleRequest, seed: int, seconds: float):
    if request_.policy == SEARCH:
        request_ = ScheduleRequest(SEARCH, max_live=request_.max_live, seed=seed, seconds=seconds)
    assert read_request(str(request_)) == request_


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zbh1", "unknown policy 'zbh1'; did you mean 'zb-h1'?"),
        ("zb-h1(", "expected a policy, or one with options such as"),
        ("zb-h1(max-live=4)(seed=1)", "expected a policy, or one with options such as"),
        ("zb-h1(maxlive=4)", "option 'maxlive' is unknown; did you mean 'max-live'?"),
        ("zb-h1(max-live)", "option 'max-live' needs a value, such as max-live=4"),
        ("zb-h1(max-live=)", "option 'max-live' needs a value"),
        ("zb-h1(max-live=0)", "option 'max-live' must be a number from 1 up, got '0'"),
        ("zb-h1(max-live=٣)", "option 'max-live' must be a number from 1 up, got '٣'"),
        ("zb-h1(max-live=1, max-live=1)", "option 'max-live' is given twice"),
        ("zb-h1(seed=1)", "option 'seed' is for 'search', not for 'zb-h1'"),
        ("search(seconds=0)", "option 'seconds' must be a number of seconds above 0"),
        ("search(seconds=inf)", "option 'seconds' must be a number of seconds above 0"),
        ("search(solver=gurobi)", "option 'solver' must be cp-sat, got 'gurobi'"),
        ("search(max-bytes=4 lots)", "option 'max-bytes' unknown suffix 'lots'; known are B, KB"),
        ("search(max-bytes=0)", "option 'max-bytes' must be at least one byte, got 0"),
        ("search(max-bytes=1e30GiB)", "option 'max-bytes' must be at least one byte"),
        ("search(latency=5us)", "option 'latency' needs times to go with it, such as times=times.json"),
        ("zb-h1(times=flops, bandwidth=1)", "option 'bandwidth' needs times to go with it"),
        ("search(times=units, latency=-1)", "option 'latency' must be a number from 0 up, got -1"),
        ("search(times=units, bandwidth=5us)", "option 'bandwidth' unknown suffix 'us'; known are B/s"),
        ("search(times=units, bandwidth=0)", "option 'bandwidth' must be more than 0"),
        ("search(recompute=yes)", "option 'recompute' must be true or false, got 'yes'"),
    ],
)
def test_read_request_names_mistakes(text: str, message: str):
    with pytest.raises(RequestError) as caught:
        read_request(text)
    assert message in str(caught.value)
