"""Harness that sends mutated bytes and frames to a proxy server, which must end such calls and connections.

  python test/fuzz/mutate_connections.py --seed 0 --count 5000 --jobs 2 --keep build/fuzz/connections

A case is one connection: changed bytes of a client's calls, or frames that are valid one by one, but too many
or too large together. Case number n of a seed is always the same. A failure is a crash, an exception in a
thread, a connection or session that does not end with its client, a server that does not serve other clients
afterwards, or memory that is not freed. The exit code is 1 after a failure.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import faulthandler
import functools
import json
import os
import random
import resource
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Before JAX starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PW_CACHE_DIR"] = ""

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import hpack
import jax
from flags import parser_of
from forked import Ending, run_batches
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from proxy_client import HttpClient, SocketClient
from request_mutations import mutate_bytes

from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.serving.server import ProxyServer
from pathways.runtime.proxy.wire import descriptors

jax.config.update("jax_num_cpu_devices", 8)

BATCH = 250
SECONDS = 60.0
"""Wall-clock limit of a connection."""

MEMORY = 24 << 30
"""Limit of address space in bytes: XLA reserves more than it uses."""

MAX_GROWTH_BYTES = 200 << 20
"""Maximal growth of the resident memory of a process in a batch."""

_SERVICE = "/xla.ifrt.proxy.GrpcIfrtService/"
_VERSION = {"protocol_version": 25, "ifrt_serdes_version_number": 6}
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_CALL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", f"{_SERVICE}GetVersion"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def _encode(name: str, **fields: Any) -> bytes:
    return descriptors.messages()[f"xla.ifrt.proxy.{name}"](**fields).SerializeToString()


def calls_of_a_client(chance: random.Random) -> bytes:
    """Returns the bytes of a client that starts a session, stores a host buffer and sends requests."""
    client = HttpClient()
    metadata = _encode("GrpcIfrtSessionMetadata", version=_VERSION)
    session = client.call(f"{_SERVICE}IfrtSession", {"ifrt-proxy-grpc-ifrt-session-metadata-bin": metadata})
    client.send(session, _encode("IfrtRequest", init_request={}))
    store = client.call(
        f"{_SERVICE}HostBufferStore",
        {
            "ifrt-proxy-grpc-host-buffer-store-metadata-bin": _encode(
                "GrpcHostBufferStoreMetadata", session_id=1, handle=1, buffer_size=8
            )
        },
    )
    client.send(store, _encode("GrpcHostBufferStoreRequest", data=bytes(8)), end=True)
    version = client.call(f"{_SERVICE}GetVersion")
    client.send(version, _encode("GrpcGetVersionRequest", min_version={}, max_version=_VERSION), end=True)
    for _ in range(chance.randrange(5)):
        client.send(session, _encode("IfrtRequest", check_future_request={"future_handle": 1}))
    if chance.random() < 0.5:
        client.h2.end_stream(session)
    return client.h2.data_to_send()


def _frames(*frames: Frame) -> list[bytes]:
    return [_PREFACE, SettingsFrame(0).serialize(), *(frame.serialize() for frame in frames)]


def _headers(stream: int, block: bytes, *flags: str) -> HeadersFrame:
    return HeadersFrame(stream, block, flags=list(flags))


def _call(stream: int, *more: tuple[str, str]) -> HeadersFrame:
    return _headers(stream, hpack.Encoder().encode([*_CALL, *more], huffman=False), "END_HEADERS")


def changed_bytes(chance: random.Random) -> list[bytes]:
    """Returns calls of a client with some bytes changed, in pieces of any size."""
    data = calls_of_a_client(chance)
    kept = chance.choice((0, 24, 24, 24))
    data = data[:kept] + mutate_bytes(chance, data[kept:])
    size = chance.choice((1, 7, 100, 1 << 20))
    return [data[n : n + size] for n in range(0, len(data), size)]


def changed_frames(chance: random.Random) -> list[bytes]:
    """Returns frames of a client, some dropped, repeated, moved, or sent with another stream or flags."""
    data = calls_of_a_client(chance)
    frames, at = [], len(_PREFACE)
    while at + 9 <= len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        frames.append(bytearray(data[at : at + 9 + size]))
        at += 9 + size
    for _ in range(chance.choice((1, 2, 4))):
        n = chance.randrange(len(frames))
        match chance.randrange(6):
            case 0:
                del frames[n]
            case 1:
                frames.insert(n, bytearray(frames[n]))
            case 2:
                chance.shuffle(frames)
            case 3:
                frames[n][3] = chance.randrange(12)
            case 4:
                frames[n][4] = chance.randrange(256)
            case 5:
                frames[n][5:9] = chance.choice((0, 1, 2, 3, 5, 7, 99, (1 << 31) - 1)).to_bytes(4, "big")
        if not frames:
            break
    return [_PREFACE, *map(bytes, frames)]


def header_bomb(chance: random.Random) -> list[bytes]:
    """Returns one large header in the table of HPACK, and many references to it."""
    encoder = hpack.Encoder()
    first = encoder.encode([*_CALL, ("x", "a" * 4000)], huffman=False)
    again = encoder.encode([("x", "a" * 4000)]) * chance.choice((20, 1000, 16_000))
    block = first + again
    parts = [block[n : n + 16_000] for n in range(0, len(block), 16_000)]
    frames: list[Frame] = [_headers(1, parts[0], *([] if len(parts) > 1 else ["END_HEADERS"]))]
    for part in parts[1:]:
        frames.append(ContinuationFrame(1, part, flags=["END_HEADERS"] if part is parts[-1] else []))
    return _frames(*frames)


def many_headers(chance: random.Random) -> list[bytes]:
    """Returns thousands of headers in a call."""
    count = chance.choice((100, 2000, 10_000))
    block = hpack.Encoder().encode([*_CALL, *((f"x{n}", "y" * 20) for n in range(count))])
    parts = [block[n : n + 16_000] for n in range(0, len(block), 16_000)]
    frames: list[Frame] = [_headers(1, parts[0])]
    frames += [ContinuationFrame(1, part) for part in parts[1:]]
    return _frames(*frames, ContinuationFrame(1, b"", flags=["END_HEADERS"]))


def continuations(chance: random.Random) -> list[bytes]:
    """Returns headers that never end."""
    count = chance.choice((10, 100, 5000))
    size = chance.choice((0, 1, 1000))
    return _frames(_headers(1, b""), *(ContinuationFrame(1, bytes(size)) for _ in range(count)))


def resets(chance: random.Random) -> list[bytes]:
    """Returns calls that are cancelled as soon as they start."""
    encoder = hpack.Encoder()
    frames: list[Frame] = []
    for n in range(chance.choice((10, 1000, 5000))):
        frames.append(_headers(2 * n + 1, encoder.encode(_CALL), "END_HEADERS"))
        frames.append(RstStreamFrame(2 * n + 1, error_code=8))
    return _frames(*frames)


def open_calls(chance: random.Random) -> list[bytes]:
    """Returns more calls at once than the server allows, without any message."""
    encoder = hpack.Encoder()
    path = chance.choice(("GetVersion", "IfrtSession", "HostBufferStore", "Unknown"))
    headers = [(name, f"{_SERVICE}{path}" if name == ":path" else value) for name, value in _CALL]
    return _frames(*(_headers(2 * n + 1, encoder.encode(headers), "END_HEADERS") for n in range(400)))


def sessions(chance: random.Random) -> list[bytes]:
    """Returns many sessions in one connection."""
    metadata = _encode("GrpcIfrtSessionMetadata", version=_VERSION)
    client = HttpClient()
    for _ in range(chance.choice((2, 50, 100))):
        stream = client.call(
            f"{_SERVICE}IfrtSession", {"ifrt-proxy-grpc-ifrt-session-metadata-bin": metadata}
        )
        client.send(stream, _encode("IfrtRequest", init_request={}))
    return [client.h2.data_to_send()]


def windows(chance: random.Random) -> list[bytes]:
    """Returns windows that are empty, maximal or too large, and settings that change them."""
    sizes = (0, 1, 65_535, (1 << 31) - 1)
    frames: list[Frame] = [_call(1)]
    for _ in range(chance.choice((3, 30, 3000))):
        frame: Frame
        if chance.random() < 0.5:
            frame = WindowUpdateFrame(chance.choice((0, 1, 3)))
            frame.window_increment = chance.choice((1, 1000, (1 << 31) - 1))
        else:
            frame = SettingsFrame(0, settings={chance.choice((1, 3, 4, 5, 6, 8, 99)): chance.choice(sizes)})
        frames.append(frame)
        if chance.random() < 0.1:
            frames.append(DataFrame(1, b"\0\0\0\0\0"))
    return _frames(*frames)


def control_frames(chance: random.Random) -> list[bytes]:
    """Returns thousands of pings, settings and priorities."""
    kind = chance.choice(("ping", "settings", "priority", "goaway"))
    count = chance.choice((10, 1000, 20_000))
    frames: dict[str, Frame] = {
        "ping": PingFrame(0, b"12345678"),
        "settings": SettingsFrame(0, settings={4: 100}),
        "priority": PriorityFrame(3, depends_on=chance.choice((0, 1, 3)), stream_weight=1),
        "goaway": GoAwayFrame(0),
    }
    return _frames(*[frames[kind]] * count)


def long_messages(chance: random.Random) -> list[bytes]:
    """Returns prefixes of messages of gRPC that announce too many bytes, or compression."""
    size = chance.choice((1, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1))
    path = chance.choice(("GetVersion", "IfrtSession", "HostBufferLookup"))
    headers = [(name, f"{_SERVICE}{path}" if name == ":path" else value) for name, value in _CALL]
    metadata = _encode("GrpcIfrtSessionMetadata", version=_VERSION)
    binary = ("ifrt-proxy-grpc-ifrt-session-metadata-bin", base64.b64encode(metadata).decode())
    block = hpack.Encoder().encode([*headers, binary])
    prefix = bytes([chance.choice((0, 0, 1, 255))]) + size.to_bytes(4, "big")
    return _frames(
        _headers(1, block, "END_HEADERS"),
        DataFrame(1, prefix),
        *[DataFrame(1, bytes(16_000))] * chance.choice((0, 5, 400)),
    )


def nested_messages(chance: random.Random) -> list[bytes]:
    """Returns messages of protobuf that are nested deeper than readers accept."""
    metadata = _encode("GrpcIfrtSessionMetadata", version=_VERSION)
    client = HttpClient()
    stream = client.call(f"{_SERVICE}IfrtSession", {"ifrt-proxy-grpc-ifrt-session-metadata-bin": metadata})
    depth = chance.choice((50, 200, 5000))
    if chance.random() < 0.5:
        # Groups of an unknown field.
        message = bytes([(15 << 3) | 3]) * depth + bytes([(15 << 3) | 4]) * depth
    else:
        message = b""
        for _ in range(min(depth, 300)):
            length, size = bytearray(), len(message)
            while size > 127:
                length.append(size & 127 | 128)
                size >>= 7
            length.append(size)
            message = bytes([chance.choice(((1 << 3) | 2, (3 << 3) | 2))]) + bytes(length) + message
    client.send(stream, message)
    client.send(stream, _encode("IfrtRequest", init_request={}))
    return [client.h2.data_to_send()]


def garbage(chance: random.Random) -> list[bytes]:
    """Returns bytes of another protocol."""
    return [
        chance.choice(
            (
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
                chance.randbytes(chance.choice((1, 100, 100_000))),
                _PREFACE[:10],
                _PREFACE + b"\xff" * 9,
                b"",
            )
        )
    ]


ATTACKS: dict[Callable[[random.Random], list[bytes]], float] = {
    changed_bytes: 30,
    changed_frames: 20,
    header_bomb: 2,
    many_headers: 2,
    continuations: 3,
    resets: 2,
    open_calls: 2,
    sessions: 1,
    windows: 6,
    control_frames: 3,
    long_messages: 6,
    nested_messages: 6,
    garbage: 4,
}
"""Attacks with their weights."""

Verdict = tuple[str, str]
"""Verdict on a case: its kind, `ended` if it is no failure, and a text that failures of one cause share."""


def connection(seed: int, number: int) -> tuple[str, list[bytes], random.Random]:
    """Returns the name, and the bytes in pieces, of a case."""
    chance = random.Random(f"{seed} {number}")
    attack = chance.choices(list(ATTACKS), list(ATTACKS.values()))[0]
    return attack.__name__, attack(chance), chance


def main() -> int:
    """Runs the harness; returns its exit code."""
    options = parser_of(__doc__, "connections", 300).parse_args()
    verdicts: dict[int, Verdict] = {}
    began = shown = time.monotonic()
    numbers = range(options.first, options.first + options.count)
    for number, verdict, stderr in run_cases(options.seed, numbers, options.jobs):
        verdicts[number] = verdict
        if verdict[0] != "ended":
            options.keep.mkdir(parents=True, exist_ok=True)
            name, pieces, _ = connection(options.seed, number)
            text = f"{verdict}\n{name}, {len(b''.join(pieces))} bytes\n{stderr}\n"
            (options.keep / f"{verdict[0]}.{number}.txt").write_text(text)
            (options.keep / f"{verdict[0]}.{number}.bytes").write_bytes(b"".join(pieces))
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            print(f"{len(verdicts)}, {len(verdicts) / (shown - began):.0f} a second", file=sys.stderr)
    failures = collections.Counter(verdict for verdict in verdicts.values() if verdict[0] != "ended")
    for (kind, cause), count in failures.most_common():
        print(f"{count:>8}  {kind:<8} {cause}")
    print(f"{len(verdicts)} connections, {sum(failures.values())} failures")
    return 1 if failures else 0


def run_cases(seed: int, numbers: Sequence[int], jobs: int) -> Iterator[tuple[int, Verdict, str]]:
    """Runs cases in batches; yields the number, the verdict and the output of each."""
    run = functools.partial(_run_batch, seed)
    for ending, done, failed in run_batches(numbers, BATCH, jobs, SECONDS, MEMORY, run):
        for number, (kind, cause) in done.items():
            yield number, (kind, cause), ending.stderr if kind != "ended" else ""
        if failed is not None:
            yield failed, _judge_ending(ending), ending.stderr


def _judge_ending(ending: Ending) -> Verdict:
    if ending.signal is None or ending.late:
        return "hang", ending.note
    return "crash", f"{ending.signal.name} {ending.note}"


def _run_batch(seed: int, batch: Sequence[int], folder: Path, note: Callable[[str], None]) -> None:
    """Runs a batch in a child."""
    raised: list[str] = []

    def on_exception(found: threading.ExceptHookArgs) -> None:
        traceback.print_exception(found.exc_type, found.exc_value, found.exc_traceback)
        frames = traceback.extract_tb(found.exc_traceback)
        last = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        raised.append(f"{found.exc_type.__name__} {last}")

    threading.excepthook = on_exception
    # A path of a socket may have 107 characters.
    os.chdir(folder)
    Path("own").mkdir(mode=0o700)
    server = ProxyServer(
        Path("own/socket"), ServedDevices(LocalBackend(jax.devices("cpu")), descriptors.messages())
    )
    resident = 0
    with Path("verdicts").open("a") as file:
        for n, number in enumerate(batch):
            name, pieces, chance = connection(seed, number)
            note(name)
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            _connect(server.path, pieces, chance)
            verdict = _verdict(server, name, raised)
            faulthandler.cancel_dump_traceback_later()
            if n == min(20, len(batch) - 1):
                resident = _resident_bytes()
            if n == len(batch) - 1 and _resident_bytes() > resident + MAX_GROWTH_BYTES:
                verdict = "memory", f"{(_resident_bytes() - resident) >> 20} MiB more"
            file.write(json.dumps([number, verdict]) + "\n")
            file.flush()


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _connect(path: Path, pieces: Sequence[bytes], chance: random.Random) -> None:
    """Sends bytes, and may or may not read replies; closes or aborts the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, contextlib.suppress(OSError):
        client.connect(str(path))
        reads = chance.random() < 0.7
        reader = threading.Thread(target=_read, args=(client,))
        if reads:
            reader.start()
        # A server that waits for a client to read accepts no more.
        client.settimeout(SECONDS if reads else 0.2)
        try:
            for piece in pieces:
                client.sendall(piece)
            if reads and chance.random() < 0.7:
                client.shutdown(socket.SHUT_WR)
                reader.join()
        finally:
            if reads:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
                reader.join()


def _read(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while client.recv(1 << 20):
            pass


def _verdict(server: ProxyServer, name: str, raised: list[str]) -> Verdict:
    """Waits until nothing is left of a connection; checks that the server serves another one."""
    while server._connections or server.sessions:
        time.sleep(0.001)  # `faulthandler` ends this process at the time limit.
    if raised:
        return "python", f"{name}: {raised.pop(0)}"
    other = SocketClient(server.path)
    stream = other.call(f"{_SERVICE}GetVersion")
    other.send(stream, _encode("GrpcGetVersionRequest", min_version={}, max_version=_VERSION), end=True)
    answer = other.wait_for_message(stream)
    other.close()
    return ("ended", "") if answer else ("silent", name)


if __name__ == "__main__":
    sys.exit(main())
