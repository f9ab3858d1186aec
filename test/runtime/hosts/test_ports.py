"""A port has one server, although servers of gRPC share ports silently."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from collections.abc import Iterator

import jax
import pytest
from preloaded import PreloadedProcess

from pathways.runtime.hosts.launch.sockets import server_socket
from pathways.runtime.hosts.worker.worker_target import Peers, TransferIds
from pathways.runtime.resources import ports
from pathways.runtime.resources.ports import claimed, claimed_port, is_shared, listen_alone

HERE = "127.0.0.1"

LISTENING = """
import sys
import jax
from pathways.runtime.hosts.worker.worker_target import Peers
client = jax.devices("cpu")[0].client
print("ready", flush=True)
sys.stdin.readline()
try:
    peers = Peers(client, "127.0.0.1", (int(sys.argv[1]), int(sys.argv[2])))
    print(peers.address, flush=True)
except OSError as error:
    print(error, flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def listening(count: int, first: int, last: int) -> Iterator[list[str]]:
    """Yields the addresses of transfer servers that processes start at once, or their errors."""
    command = ["-c", LISTENING, str(first), str(last)]
    with contextlib.ExitStack() as stack:
        outputs, starts, processes = [], [], []
        for _ in range(count):
            (read, stdin), (stdout, write) = os.pipe(), os.pipe()
            processes.append(PreloadedProcess(command, stdin=read, stdout=write, stderr=2))
            os.close(read)
            os.close(write)
            starts.append(stack.enter_context(os.fdopen(stdin, "w", buffering=1)))
            outputs.append(stack.enter_context(os.fdopen(stdout)))
        assert [file.readline() for file in outputs] == ["ready\n"] * count
        for file in starts:
            file.write("\n")
        yield [file.readline().strip() for file in outputs]
        for file in starts:
            file.close()
        assert [process.wait(60) for process in processes] == [0] * count


@pytest.fixture(scope="module")
def client():
    return jax.devices("cpu")[0].client


def sharing(port: int) -> socket.socket:
    """Returns a server that shares its port, as those of JAX and gRPC do."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((HERE, port))
    sock.listen()
    return sock


@pytest.mark.hosts
def test_ports_of_several_processes_differ():
    """Four processes start at once, with three ports."""
    with listening(4, 20710, 20712) as lines:
        assert sorted(lines) == [
            *(f"{HERE}:{port}" for port in (20710, 20711, 20712)),
            f"no port from 20710 to 20712 is free on {HERE}",
        ]


@pytest.mark.hosts
def test_ports_of_other_transfer_servers_are_skipped(client):
    with listening(1, 20714, 20714) as lines:
        assert lines == [f"{HERE}:20714"]
        assert Peers(client, HERE, (20713, 20714)).address == f"{HERE}:20713"
        with pytest.raises(OSError, match=r"no port from 20714 to 20714 is free on 127\.0\.0\.1"):
            Peers(client, HERE, (20714, 20714))
    assert Peers(client, HERE, (20714, 20714)).address == f"{HERE}:20714"


def test_ports_that_become_shared_are_refused(client):
    peers = Peers(client, HERE, (20715, 20715))
    assert peers.port_conflict() is None
    with sharing(20715):
        assert peers.port_conflict() == (
            "another process listens on 127.0.0.1:20715 too, and could get requests meant for this one"
        )


def test_listen_alone_leaves_a_port_of_another_server():
    """A server that claims no port may listen between the claim and the start."""
    strangers: list[socket.socket] = []

    class Server:
        def __init__(self, port: int) -> None:
            if not strangers:
                strangers.append(sharing(port))
            self.port = port
            weakref.finalize(self, sharing(port).close)

    server = listen_alone(HERE, (20716, 20717), Server)
    with strangers[0] as other:
        assert {server.port, other.getsockname()[1]} == {20716, 20717}
        assert not any(is_shared(HERE, port) for port in (20716, 20717))


def test_listen_alone_tries_the_next_port_when_a_server_does_not_start():
    tried: list[int] = []

    def start(port: int) -> int:
        tried.append(port)
        if len(tried) < 3:
            raise OSError("in use")
        return port

    assert listen_alone(HERE, (20721, 20723), start) == tried[2]
    assert sorted(tried) == [20721, 20722, 20723]


def test_claimed_port_is_left_alone_before_anything_listens_on_it():
    with claimed(HERE, 20719):
        with pytest.raises(OSError, match="in use"), claimed(HERE, 20719):
            pass
        with pytest.raises(OSError, match="no port"), claimed_port(HERE, (20719, 20719)):
            pass
        with pytest.raises(OSError, match="no port"):
            server_socket(HERE, (20719, 20719))
    with server_socket(HERE, (20719, 20719)) as server:
        assert server.getsockname() == (HERE, 20719)
        with pytest.raises(OSError, match="in use"), claimed(HERE, 20719):
            pass


def test_claimed_port_may_be_any():
    with claimed_port(HERE, None) as first, claimed_port(HERE, None) as second:
        assert first != second
        with server_socket("localhost", None) as server:
            assert server.getsockname()[1] not in (first, second)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_is_shared_counts_servers_of_the_address(family: socket.AddressFamily):
    """Servers of gRPC use IPv6 sockets for IPv4 addresses, too."""
    address = HERE if family == socket.AF_INET else f"::ffff:{HERE}"
    socks = [socket.socket(family) for _ in range(2)]
    for n, sock in enumerate(socks):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((address, 20720))
        sock.listen()
        assert is_shared(HERE, 20720) == (n == 1)
    assert not is_shared("127.0.0.2", 20720)
    for sock in socks:
        sock.close()


def test_ports_are_drawn_without_shared_state():
    drawn: list[list[int]] = []
    for _ in range(2):
        ports._random.seed(0)
        drawn.append([*ports._candidates(HERE, (20000, 20099))])
    assert drawn[0] != drawn[1]
    assert sorted(drawn[0]) == [*range(20000, 20100)]


def test_transfer_ids_of_two_hosts_are_never_the_same():
    numbers = TransferIds((1 << 61) - 1, stride=5, hosts=3)
    runs = [*range(4), 1 << 60, (1 << 60) + 1]
    sent = [
        numbers.first(run) + numbers.offset(index, source, target)
        for run in runs
        for index in range(5)
        for source in range(3)
        for target in range(3)
    ]
    assert len({*sent}) == len(sent) == 6 * 5 * 9
    # Ids of JAX have 64 bits.
    assert 0 <= min(sent) <= max(sent) < 1 << 64
