"""Options of workers, and the errors of wrong ones."""

from __future__ import annotations

import tomllib

import pytest

import pathways as pw

FILE = """
[hosts]
heartbeat = 5
ahead = 8
grace = 3.5
"""


def test_host_options_of_a_file():
    assert pw.HostOptions.from_dict(tomllib.loads(FILE)["hosts"]) == pw.HostOptions(
        heartbeat=5, ahead=8, grace=3.5
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hartbeat": 5}, "hartbeat: unknown key; did you mean heartbeat"),
        ({"x": 1}, "x: unknown key; expected some of ahead, heartbeat, "),
        ({"heartbeat": "5"}, 'heartbeat = "5": expected at least one second'),
        ({"heartbeat": float("nan")}, "heartbeat = NaN: expected at least one second"),
        ({"ahead": True}, "ahead = true: expected a number of steps of at least 1, or 'auto'"),
        ({"ports": [8, 9]}, "ports: unknown key; ports belongs to the launcher, such as pathways.Ssh"),
        ({"grace": -1}, "grace = -1: expected seconds, 0 for none"),
        ({"step_deadline": 0}, "step_deadline = 0: expected seconds, or None for never"),
    ],
)
def test_host_options_refuse_wrong_values(values: dict[str, object], message: str):
    with pytest.raises(ValueError, match=f"^{message}"):
        pw.HostOptions.from_dict(values)


def test_host_options_of_a_caller_are_checked():
    with pytest.raises(ValueError, match=r"^heartbeat='5': expected at least one second$"):
        pw.HostOptions(heartbeat="5")  # type: ignore[arg-type]
    assert repr(pw.HostOptions(ahead=2)).startswith("HostOptions(ahead=2, heartbeat=10.0")


def test_host_options_name_the_launcher_for_its_settings():
    with pytest.raises(
        TypeError, match=r"'ports'; it belongs to the launcher, as in pathways\.Ssh\(.*ports=\(7, 9\)\)"
    ):
        pw.HostOptions(ports=(7, 9))  # type: ignore[call-arg]
