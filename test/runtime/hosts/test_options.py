"""Options of workers, and the errors of wrong ones."""

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
        ({"hartbeat": 5}, "hartbeat: unknown key; did you mean heartbeat"),
        ({"x": 1}, "x: unknown key; expected some of ahead, heartbeat, "),
        ({"heartbeat": "5"}, 'heartbeat = "5": expected at least one second'),
        ({"heartbeat": float("nan")}, "heartbeat = NaN: expected at least one second"),
        ({"ahead": True}, "ahead = true: expected a number of steps of at least 1, or 'auto'"),
        ({"ports": [9, 8]}, r"ports=\(9, 8\): expected a first and a last port"),
        ({"ports": 9}, "ports = 9: expected a first and a last port"),
        ({"grace": -1}, "grace = -1: expected seconds, 0 for none"),
        ({"step_deadline": 0}, "step_deadline = 0: expected seconds, or None for never"),
        ({"advertise": 3}, "advertise = 3: expected an address"),
    ],
)
def test_host_options_refuse_wrong_values(values: dict[str, object], message: str):
    with pytest.raises(ValueError, match=f"^{message}"):
        pw.HostOptions.from_dict(values)


def test_host_options_of_a_caller_are_checked():
    with pytest.raises(ValueError, match=r"^heartbeat='5': expected at least one second$"):
        pw.HostOptions(heartbeat="5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^ports=\(9, 8\): expected a first and a last port$"):
        pw.HostOptions(ports=(9, 8))
    assert pw.HostOptions(ports=[8, 9]).ports == (8, 9)  # type: ignore[arg-type]
    assert repr(pw.HostOptions(ahead=2)).startswith("HostOptions(ahead=2, heartbeat=10.0")


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


def test_connect_refuses_options_as_keywords():
    with pytest.raises(TypeError, match=r"pass options=pathways\.HostOptions\(heartbeat=3\)"):
        pw.connect(hosts=1, heartbeat=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"options=3: expected pathways\.HostOptions"):
        pw.connect(hosts=1, options=3)  # type: ignore[arg-type]
