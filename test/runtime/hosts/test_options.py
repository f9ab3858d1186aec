"""What a user may say of workers, and what is wrong with it."""

from __future__ import annotations

import tomllib

import pytest

import pathways as pw

FILE = """
[hosts]
heartbeat = 5
ahead = 8
ports = [20000, 20099]
"""


def test_host_options_of_a_file():
    assert pw.HostOptions.from_dict(tomllib.loads(FILE)["hosts"]) == pw.HostOptions(
        heartbeat=5, ahead=8, ports=(20000, 20099)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hartbeat": 5}, "hartbeat: there is no such host option; did you mean heartbeat"),
        ({"x": 1}, "x: there is no such host option; expected some of ahead, heartbeat, "),
        ({"heartbeat": "5"}, "heartbeat='5': expected at least one second"),
        ({"heartbeat": float("nan")}, "heartbeat=nan: expected at least one second"),
        ({"ahead": True}, "ahead=True: expected at least 1"),
        ({"ports": [9, 8]}, r"ports=\[9, 8\]: expected a first and a last port"),
        ({"ports": 9}, "ports=9: expected a first and a last port"),
        ({"grace": -1}, "grace=-1: expected seconds, 0 for none"),
        ({"step_deadline": 0}, "step_deadline=0: expected seconds, or None for never"),
        ({"advertise": 3}, "advertise=3: expected an address"),
    ],
)
def test_host_options_refuse_wrong_values(values: dict[str, object], message: str):
    with pytest.raises(ValueError, match=f"^{message}"):
        pw.HostOptions.from_dict(values)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"host": 2}, r"unexpected keyword argument 'host'; did you mean hosts=2\?"),
        ({"cpu_device": 4}, r"unexpected keyword argument 'cpu_device'; did you mean cpu_devices=4\?"),
        ({"hosts": 2, "islands_": 1}, r"unexpected keyword argument 'islands_'; did you mean islands=1\?"),
        ({"restart_seconds": 9}, r"pass options=pathways\.HostOptions\(restart_seconds=9\)"),
        ({"xyz": 2}, "unexpected keyword argument 'xyz'(\n|$)"),
    ],
)
def test_connect_suggests_keywords(keywords: dict[str, object], message: str):
    with pytest.raises(TypeError, match=message):
        pw.connect(**keywords)


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        (2, r"connect\(2\): expected 'ray', .*; did you mean hosts=2\?"),
        (["a", "b"], r"connect\(\['a', 'b'\]\): expected 'ray', .*; did you mean hosts=\['a', 'b'\]\?"),
        ("mpi", "expected 'ray', 'slurm', 'join', or nothing(\n|$)"),
        (True, "expected 'ray', 'slurm', 'join', or nothing(\n|$)"),
    ],
)
def test_connect_suggests_hosts(launcher: object, message: str):
    with pytest.raises(ValueError, match=message):
        pw.connect(launcher)
    with pytest.raises(ValueError, match="expected a number, or a list of names of machines"):
        pw.connect(hosts=2.0)


def test_connect_warns_of_deprecated_keywords():
    """Refused here for another reason, before anything is started."""
    with (
        pytest.warns(
            DeprecationWarning, match=r"pass options=pathways.HostOptions\(heartbeat=3, ahead=2\)"
        ) as warned,
        pytest.raises(ValueError, match="bind='x': expected an IPv4 address"),
    ):
        pw.connect(hosts=1, bind="x", heartbeat=3, ahead=2)
    assert warned[0].filename == __file__
    with pytest.raises(TypeError, match=r"ahead= beside options=: expected in options=pathways.HostOptions"):
        pw.connect(hosts=1, ahead=2, options=pw.HostOptions())
    with pytest.raises(TypeError, match="unexpected keyword argument 'host'"):
        pw.connect(host=1)  # type: ignore[call-arg]
