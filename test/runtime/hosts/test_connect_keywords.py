"""Calls of `connect` that do not work, each with one sentence that has a call that does."""

from __future__ import annotations

from typing import Any

import pytest

import pathways as pw

SSH = pw.Ssh(["a", "b"], bind="10.0.0.5")
WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    # The first argument.
    ((2,), {}, r"connect\(2\): expected the name of a cluster, or pathways.Ssh, .*; did you mean hosts=2\?"),
    (
        (True,),
        {},
        r"connect\(True\): expected the name of a cluster, or .*, Ray or Join(\n|$)",
    ),
    (
        (["a"],),
        {},
        r"connect\(\['a'\]\): .*; for machines pathways.connect\(pathways.Ssh\(\['a'\], bind=\)\)",
    ),
    ((pw.Slurm,), {}, r"connect\(Slurm\): expected a record, as in pathways.connect\(pathways.Slurm\(\)\)"),
    (("slurm",), {}, r"connect\('slurm'\): launchers are records, as in pathways.connect\(pathways.Slurm"),
    (("ray",), {"islands": [pw.Island()]}, r"as in pathways.connect\(pathways.Ray\(\), islands="),
    (
        ("join",),
        {"hosts": 2},
        r"as in pathways.connect\(pathways.Join\(secret_file=, bind=, ports=\), hosts=2",
    ),
    # Keywords of earlier releases, and misspelt ones.
    ((), {"attach": "lab"}, r"'attach'; a service comes first, as in pathways.connect\('lab'\)"),
    ((), {"address": "auto"}, r"'address'; it belongs to the launcher, as in pathways.Ray\(address='auto'"),
    ((), {"bind": "1.2.3.4"}, r"'bind'; it belongs to the launcher, as in .*bind='1.2.3.4'"),
    ((), {"start": "x"}, r"'start'; it belongs to the launcher, as in .*start='x'"),
    ((), {"python": "x"}, r"'python'; it belongs to the launcher, as in .*python='x'"),
    ((), {"secret_file": "x"}, r"'secret_file'; it belongs .*pathways.Join\(secret_file='x'"),
    ((), {"ports": (7, 9)}, r"'ports'; it belongs to the launcher, as in .*ports=\(7, 9\)"),
    ((), {"host": 2}, r"unexpected keyword argument 'host'; did you mean hosts=2\?"),
    ((), {"cpu_device": 4}, r"'cpu_device'; did you mean cpu_devices=4\?"),
    ((), {"islands_": 1}, r"'islands_'; did you mean islands=1\?"),
    ((), {"heartbeat": 3}, r"'heartbeat'; pass options=pathways\.HostOptions\(heartbeat=3\)"),
    ((), {"xyz": 2}, "unexpected keyword argument 'xyz'(\n|$)"),
    # Keywords of other devices.
    (
        (),
        {"devices_per_host": 2},
        r"devices_per_host= is not for devices of this process, .*hosts=2, devices_per",
    ),
    ((), {"client": "ann"}, r"client= is not for devices of this process, .*connect\('lab', client='ann'\)"),
    ((), {"hosts": 2, "token": "t"}, r"token= is not for workers, which have hosts, .*token='t'\) attaches"),
    ((), {"hosts": 2, "cpu_devices": 8}, r"cpu_devices= is not for workers, .*devices_per_host=8\)"),
    ((SSH,), {"device_memory": 9}, r"device_memory= is not for workers, .*connect\(device_memory=9\) limits"),
    (("lab",), {"hosts": 2}, r"hosts= is not for clients of a service, which have client and token; "),
    (
        ("lab",),
        {"options": pw.HostOptions()},
        "options= is not for clients of a service, .*file of the cluster",
    ),
    (("lab",), {"islands": 2}, "islands= is not for clients of a service, .*the file of the cluster has its"),
    # Hosts that are said twice, or not at all.
    ((), {"hosts": 2, "islands": [pw.Island()]}, "hosts= and islands= both say which hosts; expected one"),
    ((), {"hosts": ["a", "b"]}, r"hosts=\['a', 'b'\]: expected a number; for machines pathways.Ssh\(\['a'"),
    ((), {"hosts": 2.0}, r"hosts=2\.0: expected at least 1"),
    ((), {"hosts": 0}, "hosts=0: expected at least 1"),
    ((), {"islands": [2]}, r"islands=\[2\]: expected a list of pathways\.Island"),
    ((), {"islands": [pw.Island(["a"])]}, r"hosts=\['a'\]: expected pathways\.Ssh\(bind=\), which starts"),
    (
        (),
        {"islands": [pw.Island()], "devices_per_host": 2},
        r"devices_per_host= is for hosts=; with islands= each has its own, .*devices_per_host=2\)",
    ),
    ((SSH,), {"hosts": 2}, r"the hosts of Ssh are machines with names, as in pathways.Ssh\(\['a', 'b'\]\)"),
    (
        (SSH,),
        {"islands": [pw.Island(["c"])]},
        r"Ssh\(machines\) and islands= both name machines; expected one",
    ),
    ((pw.Ssh(bind="10.0.0.5"),), {}, r"Ssh needs islands=\[pathways.Island\(...\), ...\](\n|$)"),
    (
        (pw.Ssh(bind="10.0.0.5"),),
        {"islands": [pw.Island(2)]},
        "expected names of machines for ssh, as in Island",
    ),
    ((pw.Slurm(),), {"hosts": 2}, "the hosts of Slurm are the nodes of the allocation; pass islands="),
    ((pw.Ray(),), {}, r"Ray needs islands=\[pathways.Island\(...\), ...\], or hosts="),
    ((), {"options": 3}, r"options=3: expected pathways\.HostOptions"),
]


@pytest.mark.parametrize(
    ("where", "keywords", "message"), WRONG, ids=[message[:32] for _, _, message in WRONG]
)
def test_connect_says_which_call_works(where: tuple[Any, ...], keywords: dict[str, Any], message: str):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        pw.connect(*where, **keywords)
    assert "\n" not in str(error.value).partition("\n\n")[0]
