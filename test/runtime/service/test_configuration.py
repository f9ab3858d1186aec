"""Configuration files of clusters, and a message of one line for each error in them."""

from __future__ import annotations

import contextlib
import random
import textwrap
from pathlib import Path

import pages
import pytest
from fake_scontrol import write_scontrol

from pathways.runtime.hosts.launch.launcher_records import Join, Ray, Ssh
from pathways.runtime.hosts.launch.options import HostOptions
from pathways.runtime.hosts.launch.settings import Island, Settings
from pathways.runtime.service.configuration import Configuration, ConfigurationError, read
from pathways.runtime.service.sharing.memory import DeviceLimits
from pathways.runtime.service.sharing.rules import ClientRules, SharingRules

FULL = """
sharing = "fifo"
listen = "10.0.0.5:7070"
token = "token"
bind = "10.0.0.5"
start = "ssh -o BatchMode=yes {host} {command}"
python = "/opt/pathways/bin/python"
heartbeat = 5
ahead = 8
stall_report = false
restart_seconds = 60.5
ports = [20000, 20099]

[[islands]]
hosts = ["a", "b"]
devices_per_host = 4

[[islands]]
hosts = ["c"]
cores = 2

[clients.ann]
weight = 2.0
step_limit = 0.5

[clients."bo.b-2"]
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | bytes) -> str:
        (tmp_path / "lab.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / "lab.toml")

    return write


def test_configuration_reads_all_keys(write, tmp_path):
    assert read(write(FULL)) == Configuration(
        Settings(
            (Island(["a", "b"], devices_per_host=4), Island(["c"], cores=2)),
            HostOptions(heartbeat=5, ahead=8, stall_report=None, restart_seconds=60.5),
            Ssh(
                start="ssh -o BatchMode=yes {host} {command}",
                python="/opt/pathways/bin/python",
                bind="10.0.0.5",
                ports=(20000, 20099),
            ),
        ),
        SharingRules(
            "fifo",
            clients={"ann": ClientRules(2.0, step_limit=0.5), "bo.b-2": ClientRules()},
            islands=(None, None),
        ),
        ("10.0.0.5", 7070),
        tmp_path / "token",
    )


@pytest.mark.parametrize(
    ("text", "islands"),
    [
        ("[[islands]]", [Island()]),
        ("[[islands]]\ncount = 2\nhosts = 2\ndevices_per_host = 4", [Island(2, 4), Island(2, 4)]),
        ("[[islands]]\nspares = 2", [Island(spares=2)]),
        ("[[islands]]\ncount = 3\njoined = 'a'", [Island(3, slices=3)]),
        (
            "[[islands]]\njoined = 'a'\nhosts = 2\n[[islands]]\n[[islands]]\njoined = 'a'\nhosts = 2",
            [Island(4, slices=2), Island()],
        ),
        (
            "bind = '10.0.0.1'\n[[islands]]\njoined = 'a'\nhosts = ['m', 'n']\n"
            "[[islands]]\njoined = 'a'\nhosts = ['o', 'p']",
            [Island(["m", "n", "o", "p"], slices=2)],
        ),
        ("hosts = 2\ndevices_per_host = 4", [Island(1, 4), Island(1, 4)]),
        ("hosts = ['a', 'b']\nbind = '10.0.0.5'", [Island(["a"]), Island(["b"])]),
    ],
)
def test_configuration_reads_islands(write, text, islands):
    assert read(write(text)).settings.islands == tuple(islands)


@pytest.mark.process
@pytest.mark.quick
def test_configuration_reads_launchers(write, tmp_path, monkeypatch):
    assert read(write("launcher = 'ray'\naddress = 'auto'\n[[islands]]")).settings == Settings(
        (Island(),), launcher=Ray(address="auto")
    )
    joined = read(
        write("launcher = 'join'\nsecret_file = 's'\nbind = '10.0.0.5'\nports = [7000, 7009]\nhosts = 3")
    )
    assert joined.settings.launcher == Join(
        secret_file=str(tmp_path / "s"), bind="10.0.0.5", ports=(7000, 7009)
    )
    write_scontrol(tmp_path, monkeypatch, {"n[1-2]": ["n1", "n2"]})
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    slurm = read(write("launcher = 'slurm'\nbind = '10.0.0.5'"))
    assert [island.hosts for island in slurm.settings.islands] == [("n1",), ("n2",)]


QUOTAS = """
max_clients = 2
ageing = 0.5
[[islands]]
count = 2
device_memory = "16 GiB"
pool = "2 GiB"
[[islands]]
device_memory = 17179869184
[[islands]]
[clients.ann]
memory = "4.5 GiB"
priority = 1
[clients."*"]
memory = "3 GiB"
weight = 0.5
"""


def test_configuration_has_quotas_of_memory(write):
    gib = 2**30
    rules = read(write(QUOTAS)).rules
    small, large = DeviceLimits(16 * gib, 2 * gib), DeviceLimits(16 * gib, 4 * gib)
    assert rules.islands == (small, small, large, None)
    assert rules.clients == {"ann": ClientRules(1.0, 1, 9 * gib // 2), "*": ClientRules(0.5, 0, 3 * gib)}
    assert (rules.max_clients, rules.ageing) == (2, 0.5)
    # Without a number of clients, there are as many as fit.
    assert read(write(QUOTAS.replace("max_clients = 2", ""))).rules.max_clients == 2
    shared = read(write('[[islands]]\ndevice_memory = "8 GiB"\n[clients.ann]\nmemory = "4 GiB"')).rules
    assert shared.memory(1).rest() == [2 * gib]
    assert shared.max_clients is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "hosts = 1\n[clients.a]\nmemory = '1 GiB'",
            "clients.a.memory: expected device_memory in [[islands]]",
        ),
        ("[[islands]]\npool = '1 GiB'", "islands[0].pool: expected device_memory beside it"),
        (
            "[[islands]]\ndevice_memory = '1 GiB'\npool = '1 GiB'",
            "islands[0].pool: expected less than device_memory",
        ),
        (
            "[[islands]]\ndevice_memory = '1 GB'",
            "islands[0].device_memory: '1 GB': expected a number of bytes",
        ),
        ("[[islands]]\ndevice_memory = 0", "islands[0].device_memory = 0: expected a number of bytes, as in"),
        (
            "[[islands]]\ndevice_memory = '8 GiB'\n"
            "[clients.a]\nmemory = '4 GiB'\n[clients.b]\nmemory = '3 GiB'",
            "clients: the quotas of clients are 7 GiB together, more than the 8 GiB of a device of island0",
        ),
        (
            "max_clients = 3\n[[islands]]\ndevice_memory = '8 GiB'\n[clients.'*']\nmemory = '3 GiB'",
            "clients: the quotas of clients are 9 GiB together",
        ),
        ("hosts = 1\n[clients.a]\npriority = 101", "clients.a.priority = 101: expected a whole number from"),
        ("hosts = 1\nmetrics = 9464", "metrics = 9464: expected a table [metrics]"),
        ("hosts = 1\n[metrics]\nport = 0", "metrics.port = 0: expected a port from 1 to 65535"),
        ("hosts = 1\n[metrics]\naddress = 'box'", "metrics.port: missing"),
        ("hosts = 1\nageing = 0", "ageing = 0: expected seconds above 0"),
    ],
)
def test_configuration_refuses_wrong_rules(write, text, message):
    path = write(text)
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "islands: expected [[islands]] with count, hosts and others, or hosts"),
        ("[[islands]", "not TOML: "),
        (b"\xff", "not TOML: "),
        ("hosts = " + "[" * 5000, "not TOML: "),
        ("hosts = 2\nhartbeat = 5", "hartbeat: unknown key; did you mean heartbeat?"),
        ("[[islands]]\ncout = 2", "islands[0].cout: unknown key; did you mean count?"),
        ("hosts = 2\nxyz = 5", "xyz: unknown key; expected some of ahead, heartbeat, "),
        ("hosts = 2\ncpu_devices = 5", "cpu_devices: unknown key; devices_per_host is the number"),
        ("hosts = 0", "hosts = 0: expected a number of hosts, or a list of names of machines"),
        ("hosts = true", "hosts = true: expected a number of hosts"),
        ("hosts = 100000000000", "hosts = 100000000000: expected a number of hosts"),
        ("hosts = ['a', 1]", 'hosts = ["a", 1]: expected a number of hosts'),
        ("hosts = ['-o']\nbind = '1.1.1.1'", "hosts: '-o' is not the name of a machine"),
        ("hosts = ['a']", "bind: expected the address of this machine that workers on others reach"),
        ("hosts = 1\n[[islands]]", "hosts: expected in each of [[islands]]"),
        ("devices_per_host = 1\n[[islands]]", "devices_per_host: expected in each of [[islands]]"),
        ("[islands]\ncount = 2", 'islands = {"count": 2}: expected tables [[islands]]'),
        ("[[islands]]\ncount = 2.0", "islands[0].count = 2.0: expected a whole number from 1 to 65536"),
        ("[[islands]]\ncount = 65536\nhosts = 2", "islands: more than 65536 hosts"),
        (
            "[[islands]]\njoined = 'a'\n[[islands]]\njoined = 'a'\nhosts = 2",
            "islands[1]: islands that are joined need the same number of hosts, devices_per_host and cores",
        ),
        ("[[islands]]\nhosts = ['a', 'a']", "islands[0]: hosts: 'a' is named more than once"),
        ("[[islands]]\n[[islands]]\ncores = 'x'", 'islands[1].cores = "x": expected a whole number'),
        (
            "[[islands]]\nspares = -1",
            "islands[0].spares = -1: expected a number of spare workers from 0 to 256",
        ),
        (
            "hosts = ['a']\nbind = '1.1.1.1'\nspares = 1",
            "spares=1: spare workers are children of this process",
        ),
        ("launcher = 'rey'\n[[islands]]", "launcher = \"rey\": expected one of 'ray', 'slurm', 'join'"),
        ("launcher = 'ray'\nhosts = 2", "hosts: with launcher = 'ray' expected in each of [[islands]]"),
        ("launcher = 'slurm'", "Slurm: SLURM_JOB_NODELIST is not set"),
        (
            "launcher = 'join'\nhosts = 2",
            "secret_file: it is required by launcher = 'join', and only allowed with it",
        ),
        ("launcher = 'join'\nsecret_file = 's'\nhosts = 2", "launcher: with 'join' expected bind and ports"),
        ("address = '10.0.0.5:7070'\nhosts = 2", "address: it is for Ray clusters"),
        ("listen = '10.0.0.5'\nhosts = 2", 'listen = "10.0.0.5": expected an address and a port, as in'),
        ("listen = 'x:99999'\nhosts = 2", 'listen = "x:99999": expected an address and a port'),
        ("sharing = 'fare'\nhosts = 2", "sharing = \"fare\": expected one of 'fair', 'fifo'"),
        ("policy = 'fair'\nhosts = 2", "policy: unknown key; sharing is the order in which clients share"),
        ("hosts = 2\nheartbeat = '5'", 'heartbeat = "5": expected at least one second'),
        ("hosts = 2\nheartbeat = 1" + "0" * 400, "heartbeat = 1000"),
        ("hosts = 2\nstep_deadline = 0", "step_deadline = 0: expected seconds, or false for never"),
        ("hosts = 2\nports = [9]", "ports = [9]: expected a first and a last port"),
        ("hosts = 2\nstart = ''", 'start = "": expected a text'),
        ("hosts = 2\nstart = 'x'", "start: expected only with names of machines or launcher slurm"),
        ("hosts = 2\n[clients.ann]\nweight = 0", "clients.ann.weight = 0: expected a number from 0.001 to"),
        ("hosts = 2\n[clients.ann]\nweight = nan", "clients.ann.weight = NaN: expected a number"),
        ("hosts = 2\n[clients.ann]\nstep_limit = 0", "clients.ann.step_limit = 0: expected seconds above 0"),
        ("hosts = 2\n[clients.ann]\nwait = 1", "clients.ann.wait: unknown key; did you mean weight"),
        ("hosts = 2\nclients.ann = 2", "clients.ann = 2: expected a table [clients.NAME]"),
        ("hosts = 2\n[clients.'a b']", "clients: 'a b' is not a name of a client: expected letters"),
    ],
)
def test_configuration_reports_invalid_files_in_one_line(write, monkeypatch, text, message):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    path = write(text)
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_configuration_reads_files_of_the_manual(write, tmp_path):
    lab = read(f"{pages.ROOT}/docs/cluster/lab.toml")
    assert [len(island.machines) for island in lab.settings.islands] == [4, 4, 1]
    assert {name: rules.weight for name, rules in lab.rules.clients.items()} == {"training": 3.0}
    block, quotas, metrics = pages.blocks("docs/service.md", "toml")
    assert read(write(block.text)).settings == Settings((Island(1, 4), Island(1, 4)))
    assert read(write(quotas.text)).rules.max_clients == 3
    assert read(write(f"hosts = 1\n{metrics.text}")).metrics == lab.metrics == ("127.0.0.1", 9464)
    kubernetes = (pages.ROOT / "docs/cluster/service.yaml").read_text()
    text = kubernetes.partition("lab.toml: |\n")[2].partition("---")[0]
    assert read(write(textwrap.dedent(text))).token == Path("/secrets/token")


def test_configuration_reports_a_missing_file(tmp_path):
    with pytest.raises(ConfigurationError, match=r"lab.toml: No such file or directory$"):
        read(f"{tmp_path}/lab.toml")


@pytest.mark.parametrize("seed", range(4))
def test_configuration_reports_errors_of_mutated_files(write, seed):
    chance = random.Random(seed)
    for _ in range(150):
        text = bytearray(FULL.encode())
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(text))
            piece = chance.choice([b"", b"-1", b"[", b'"', b"\n", b"9" * 30, b"=", b"\xc3", b"true", b"."])
            text[at : at + chance.randrange(4)] = piece
        with contextlib.suppress(ConfigurationError):
            read(write(bytes(text)))
