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
        ({"hosts": []}, r"hosts=\[\]: expected a number, or a list of names"),
        ({"hosts": "ab"}, "hosts='ab': expected a number, or a list of names"),
        ({"hosts": ["a", ""]}, "hosts: '' is not the name of a machine"),
        ({"hosts": ["-oProxyCommand=x"]}, "hosts: '-oProxyCommand=x' is not the name of a machine"),
        ({"hosts": ["a", "b", "a"]}, "hosts: 'a' is named more than once"),
        ({"hosts": 2}, "start= and python= are for named machines"),
        ({"bind": None}, r"hosts=\['a'\]: expected bind=, the address of this machine"),
        ({"platform": "cuda", "devices_per_host": 2}, "devices_per_host=2 is a number of CPU devices"),
    ],
)
def test_start_command_refuses_wrong_commands(settings: dict[str, Any], message: str):
    usual: dict[str, Any] = {"hosts": ["a"], "bind": "127.0.0.1", "start": "ssh {host} {command}"}
    with pytest.raises(ValueError, match=message):
        pw.connect(**(usual | settings))


def test_start_command_refuses_wrong_machines():
    with pytest.raises(ValueError, match="'a' is named more than once"):
        pw.connect(islands=[pw.Island(hosts=["a", "b"]), pw.Island(hosts=["a"])], bind="127.0.0.1")
    with pytest.raises(ValueError, match="expected names of machines in all of them, or in none"):
        pw.connect(islands=[pw.Island(hosts=["a", "b"]), pw.Island()], bind="127.0.0.1")
    with pytest.raises(ValueError, match=r"connect\('ray'\) finds the machines itself"):
        pw.connect("ray", islands=[pw.Island(hosts=["a", "b"])], bind="127.0.0.1")
