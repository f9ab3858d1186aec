"""Commands that start workers on named machines, and the errors of wrong ones."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import pathways as pw
from pathways.runtime.hosts.launch.commands import StartCommand

WORKER = ["-P", "-m", "pathways.runtime.clusters.worker_process"]


def test_start_command_replaces_its_words():
    assert StartCommand().of("a") == ["ssh", "a", sys.executable, *WORKER]
    command = StartCommand("ssh -o 'Port 7' me@{host}.lan nice {command} -v", "/opt/python")
    assert command.of("a") == ["ssh", "-o", "Port 7", "me@a.lan", "nice", "/opt/python", *WORKER, "-v"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": "ssh {command}"}, r"start='ssh {command}': expected {host}"),
        ({"start": "ssh {host}"}, r"start='ssh {host}': expected {command} once, as a word of its own"),
        ({"start": "ssh {host} sh -c '{command} 2>log'"}, "expected {command} once, as a word of its own"),
        ({"start": "ssh {host} '{command}"}, "start=.*: No closing quotation"),
        ({"python": "/opt/my python"}, "python='/opt/my python': expected a path without spaces"),
        ({"machines": []}, r"hosts=\[\]: expected a number, or a list of names"),
        ({"machines": "ab"}, "hosts='ab': expected a number, or a list of names"),
        ({"machines": ["a", ""]}, "hosts: '' is not the name of a machine"),
        ({"machines": ["-oProxyCommand=x"]}, "hosts: '-oProxyCommand=x' is not the name of a machine"),
        ({"machines": ["a", "b", "a"]}, "hosts: 'a' is named more than once"),
        ({"bind": None}, "Ssh: expected bind=, the address of this machine"),
        ({"bind": "0.0.0.0"}, "bind='0.0.0.0' is every address; pass advertise="),
        ({"ports": (9, 8)}, r"ports=\(9, 8\): expected a first and a last port from 1 to 65535"),
        ({"ports": 9}, "ports=9: expected a first and a last port"),
        ({"advertise": 3}, "advertise=3: expected an address"),
    ],
)
def test_ssh_refuses_wrong_settings(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        pw.Ssh(**({"machines": ["a"], "bind": "127.0.0.1"} | settings))


@pytest.mark.parametrize(
    ("launcher", "settings"),
    [
        (pw.Ssh, {"start": None}),
        (pw.Ssh, {"python": 3}),
        (pw.Slurm, {"start": ["srun"]}),
        (pw.Ray, {"address": ("10.0.0.5", 6379)}),
        (pw.Join, {"secret_file": b"secret", "ports": (7000, 7009)}),
    ],
)
def test_launchers_take_texts(launcher: Any, settings: dict[str, Any]):
    ((name, value),) = [pair for pair in settings.items() if pair[0] != "ports"]
    with pytest.raises(TypeError) as error:
        launcher(bind="127.0.0.1", **settings)
    assert str(error.value) == f"{name}={value!r}: expected a text"


def test_ssh_refuses_wrong_islands():
    ssh = pw.Ssh(bind="127.0.0.1")
    with pytest.raises(ValueError, match="'a' is named more than once"):
        pw.connect(ssh, islands=[pw.Island(hosts=["a", "b"]), pw.Island(hosts=["a"])])
    with pytest.raises(ValueError, match="expected names of machines in all of them, or in none"):
        pw.connect(ssh, islands=[pw.Island(hosts=["a", "b"]), pw.Island()])
    with pytest.raises(ValueError, match="devices_per_host=2 is a number of CPU devices"):
        pw.connect(pw.Ssh(["a"], bind="127.0.0.1"), platform="cuda", devices_per_host=2)
