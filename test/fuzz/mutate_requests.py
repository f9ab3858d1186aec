"""Harness that sends mutated requests to the proxy server: each gets a status or ends its session.

  python test/fuzz/mutate_requests.py --seed 0 --count 2000 --jobs 2 --keep build/fuzz/requests
  python test/fuzz/mutate_requests.py --replay build/fuzz/requests

A case is the recorded session of a real client in which some requests are changed, moved, left out or
repeated; case number n of a seed is always the same, for the same sources. Cases run in batches, each in a
separate process. A failure is a crash, a Python error that is no status, arrays that outlive their session,
or a hang outside of a program of the client. The smallest case of each cause is reduced and kept. The exit
code is 1 after a failure.
"""

from __future__ import annotations

import collections
import dataclasses
import faulthandler
import functools
import json
import os
import pickle
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Before JAX starts.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PW_CACHE_DIR"] = ""
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
from flags import parser_of
from forked import Ending, run_batches
from jaxlib.mlir import ir
from request_mutations import Pool, mutate_stream
from request_seeds import RecordedSession, read_seeds, record

from pathways.runtime.proxy import programs
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.host_buffers import HostBuffers
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.sessions.session import ProxySession
from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.proxy.wire.events import Buffer
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError
from pathways.runtime.xla import pjrt

jax.config.update("jax_num_cpu_devices", 8)

BATCH = 100
SECONDS = 60.0
"""Wall-clock limit of a request."""

MEMORY = 24 << 30
"""Limit of address space in bytes: XLA reserves more than it uses."""

_EFFORT = 120.0
"""Seconds for the reduction of an example."""

FAILURES = ("crash", "hang", "python", "left")

RequestParser = list[tuple[bytes, bool]]
"""Sequence of requests, each with whether it was mutated."""


@dataclasses.dataclass(frozen=True)
class RequestCase:
    """Session of a case: its requests and host buffers."""

    requests: RequestParser
    buffers: dict[int, bytes]


@dataclasses.dataclass(frozen=True)
class CaseVerdict:
    """Verdict on a case.

    Attributes:
      kind: `ended`, `loops`, `unmade`, or one of `FAILURES`.
      cause: a text that failures of one cause share.
      statuses: the number of replies with each status.
      mutated: the number of mutated requests that were sent.
    """

    kind: str
    cause: str = ""
    statuses: dict[str, int] = dataclasses.field(default_factory=dict)
    mutated: int = 0


def main() -> int:
    """Runs the harness; returns its exit code."""
    parser = parser_of(__doc__, "requests", 200)
    parser.add_argument("--seeds", type=Path, help="folder of recorded sessions; records them there if empty")
    parser.add_argument("--programs", nargs="*", default=(), help="programs to record (default: all)")
    parser.add_argument("--replay", type=Path, help="run the files of a folder, or one file, instead")
    parser.add_argument("--no-reduce", action="store_true", help="keep examples as they are")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.replay is not None:
            files = sorted(options.replay.glob("*.case")) if options.replay.is_dir() else [options.replay]
            make = Replayed([pickle.loads(file.read_bytes()) for file in files])
            numbers: Sequence[int] = range(len(files))
        else:
            seeds = options.seeds or Path(folder)
            seeds.mkdir(parents=True, exist_ok=True)
            if not any(seeds.iterdir()):
                record(seeds, options.programs)
            make = Mutated(options.seed, read_seeds(seeds))
            numbers = range(options.first, options.first + options.count)
        return fuzz(make, numbers, options.jobs, options.keep, not options.no_reduce)


class Replayed:
    """Cases that were kept."""

    def __init__(self, cases: Sequence[RequestCase]) -> None:
        self._cases = cases

    def __call__(self, number: int) -> RequestCase:
        return self._cases[number]


class Mutated:
    """Cases that are mutated sessions of real clients."""

    def __init__(self, seed: int, seeds: Sequence[RecordedSession]) -> None:
        self._seed = seed
        self._seeds = seeds
        self._pool: Pool | None = None
        self._all: list[bytes] = []

    def __call__(self, number: int) -> RequestCase:
        if self._pool is None:
            messages = descriptors.messages()
            self._pool = Pool(messages, functools.cache(text_of))
            self._all = [data for seed in self._seeds for data in seed.requests]
            for data in self._all:
                self._pool.add(messages.parse("xla.ifrt.proxy.IfrtRequest", data))
        chance = random.Random(f"{self._seed} {number}")
        seed = chance.choice(self._seeds)
        share = chance.choice((0.05, 0.2, 0.5))
        requests = mutate_stream(chance, seed.requests, self._all, self._pool, share)
        return RequestCase(requests, seed.buffers)


def text_of(data: bytes) -> str | None:
    """Returns the text of a program; None if the bytes are no program."""
    try:
        return str(pjrt.parse(data))
    except (ir.MLIRError, ValueError, RuntimeError, jax.errors.JaxRuntimeError):
        return None


def fuzz(
    make: Callable[[int], RequestCase], numbers: Sequence[int], jobs: int, keep: Path, reduce: bool
) -> int:
    """Runs cases; returns the exit code."""
    verdicts: dict[int, CaseVerdict] = {}
    smallest: dict[tuple[str, str], tuple[int, RequestCase]] = {}
    began = shown = time.monotonic()
    for number, verdict, case in run_cases(make, numbers, jobs):
        verdicts[number] = verdict
        if case is not None:
            key = verdict.kind, verdict.cause
            if key not in smallest or len(case.requests) < len(smallest[key][1].requests):
                smallest[key] = number, case
                write(keep, number, case, verdict)
        if time.monotonic() - shown > 20:
            shown = time.monotonic()
            sent = sum(v.mutated for v in verdicts.values())
            print(f"{sent} mutated requests, {sent / (shown - began):.0f} a second", file=sys.stderr)
    if reduce:
        for number, case in smallest.values():
            small = reduced(case, verdicts[number])
            write(keep, number, small, verdicts[number])
            print(shown_case(small))
    return report(verdicts)


def report(verdicts: dict[int, CaseVerdict]) -> int:
    """Prints how cases ended; returns the exit code."""
    statuses: collections.Counter[str] = collections.Counter()
    for verdict in verdicts.values():
        statuses.update(verdict.statuses)
    for status, count in statuses.most_common(60):
        print(f"{count:>8}  {status}")
    kinds = collections.Counter((v.kind, v.cause) for v in verdicts.values() if v.kind != "ended")
    for (kind, cause), count in kinds.most_common():
        print(f"{count:>8}  {kind:<8} {cause}")
    sent = sum(verdict.mutated for verdict in verdicts.values())
    failures = sum(count for (kind, _), count in kinds.items() if kind in FAILURES)
    print(f"{len(verdicts)} sessions, {sent} mutated requests, {failures} failures")
    return 1 if failures else 0


def write(keep: Path, number: int, case: RequestCase, verdict: CaseVerdict) -> None:
    """Writes a case that failed: to replay, and for a reader."""
    keep.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "_", f"{verdict.kind}_{verdict.cause}").strip("_")[:100]
    for old in keep.glob(f"{name}.*"):
        old.unlink()
    (keep / f"{name}.{number}.case").write_bytes(pickle.dumps(case))
    (keep / f"{name}.{number}.txt").write_text(f"{verdict.kind} {verdict.cause}\n{shown_case(case)}\n")


def shown_case(case: RequestCase) -> str:
    """Returns the requests of a case for a reader."""
    messages = descriptors.messages()
    lines = []
    for data, was_mutated in case.requests:
        try:
            text = str(messages.parse("xla.ifrt.proxy.IfrtRequest", data))
        except ValueError:
            text = repr(data[:300])
        lines.append(f"{'mutated' if was_mutated else 'as it was'}:\n{text[:3000]}")
    return "\n".join(lines)


def run_cases(
    make: Callable[[int], RequestCase], numbers: Sequence[int], jobs: int
) -> Iterator[tuple[int, CaseVerdict, RequestCase | None]]:
    """Runs cases in batches; yields verdicts, and the requests of cases that failed."""
    run = functools.partial(_run_batch, make)
    for ending, done, failed in run_batches(numbers, BATCH, jobs, SECONDS, MEMORY, run):
        for number, fields in done.items():
            verdict = CaseVerdict(**fields)
            yield number, verdict, _sent(ending, number) if verdict.kind in FAILURES else None
        if failed is not None:
            verdict, case = _judge_ending(ending), _sent(ending, failed)
            yield failed, verdict, case if verdict.kind in FAILURES else None


def _run_batch(
    make: Callable[[int], RequestCase], batch: list[int], folder: Path, note: Callable[[str], None]
) -> None:
    """Runs a batch in a child."""
    os.chdir(folder)
    served = ServedDevices(LocalBackend(jax.devices("cpu")), descriptors.messages())
    _keep_programs()
    with Path("verdicts").open("a") as file:
        for number in batch:
            note("making")
            case = make(number)
            path = Path(f"{number}.case")
            path.write_bytes(pickle.dumps(case))
            verdict = run_case(served, case, note)
            if verdict.kind not in FAILURES:
                path.unlink()
            file.write(json.dumps([number, dataclasses.asdict(verdict)]) + "\n")
            file.flush()


def _keep_programs() -> None:
    """Compiles each program once for all cases: most are not mutated."""
    compile_program = programs.compile_program
    kept: dict[tuple[bytes, bytes], Any] = {}

    def compile_once(served: Any, program: Any, options: Any, *watch: Any) -> Any:
        key = program.SerializeToString(), options.SerializeToString()
        if key not in kept:
            if len(kept) > 300:
                kept.clear()
            kept[key] = compile_program(served, program, options, *watch)
        return kept[key]

    programs.compile_program = compile_once  # type: ignore[assignment]


class StoredBuffers(HostBuffers):
    """Host buffers of a session, without waits: a buffer that is missing would never be stored."""

    def take(self, handle: int) -> Buffer:
        """Removes a stored buffer and returns it."""
        if handle not in self._buffers:
            raise StatusError(StatusCode.CANCELLED, "no such host buffer")
        return super().take(handle)


def run_case(served: ServedDevices, case: RequestCase, note: Callable[[str], None]) -> CaseVerdict:
    """Sends the requests of a case to a new session, and ends it."""
    messages = served.messages
    statuses: collections.Counter[str] = collections.Counter()
    problem = ""

    def read(data: bytes) -> None:
        nonlocal problem
        reply = messages.parse("xla.ifrt.proxy.IfrtResponse", data)
        status = reply.response_metadata.status
        name = StatusCode(status.code).name
        kind = reply.WhichOneof("response") or ""
        text = re.sub(r"\d+", "N", status.message)[:50]
        statuses[f"{name} {text}" if status.code else name] += 1
        if status.code and " in the server: " in status.message:
            problem = problem or re.sub(r"\d+", "N", status.message)[:150]
        if status.code and kind:
            problem = problem or f"a body beside {name}"

    before = len(served.backend.client.live_arrays())
    ended = ProxySession(1, served, read, lambda work: work())
    ended.state.host_buffers = StoredBuffers()
    for handle, data in case.buffers.items():
        ended.host_buffers.store(handle, data)
    sent = 0
    for n, (data, was_mutated) in enumerate(case.requests):
        sent += was_mutated
        note(f"request {n} {_kind(messages, data)}")
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            reply = ended.dispatch(data)
        except ValueError:
            statuses["session ended"] += 1
            break
        finally:
            faulthandler.cancel_dump_traceback_later()
        if reply is not None:
            read(reply)
    note("end of the session")
    ended.close()
    if ended.counts != (0, 0, 0, 0):
        return CaseVerdict("left", f"counts {ended.counts}", dict(statuses), sent)
    del ended
    # A pending computation holds its operands.
    deadline = time.monotonic() + SECONDS
    while (left := len(served.backend.client.live_arrays()) - before) > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    if left > 0:
        return CaseVerdict("left", "arrays", dict(statuses), sent)
    if problem:
        return CaseVerdict("python", problem, dict(statuses), sent)
    return CaseVerdict("ended", "", dict(statuses), sent)


def _kind(messages: Any, data: bytes) -> str:
    try:
        return messages.parse("xla.ifrt.proxy.IfrtRequest", data).WhichOneof("request") or ""
    except ValueError:
        return "none"


def _sent(ending: Ending, number: int) -> RequestCase | None:
    path = ending.folder / f"{number}.case"
    return pickle.loads(path.read_bytes()) if path.exists() else None


def _judge_ending(ending: Ending) -> CaseVerdict:
    """Returns the verdict on the case that ended its batch."""
    doing = re.sub(r"\d+ ", "", ending.note)
    if ending.note == "making":
        return CaseVerdict("unmade", "MLIR" if ending.signal else "time")
    frame = next((f"{path.name}:{line}" for path, line, _ in ending.project_frames()), "?")
    fatal = re.search(r"(?m)^F\d+ \S+ +\d+ (.*)$", ending.stderr)
    place = f"{doing} {frame} {re.sub(r'[0-9]+', 'N', fatal[1])[:120] if fatal else ''}"
    if ending.signal is None or ending.late:
        # A program may loop.
        late = (
            "hang" if "execute" not in doing and "ready" not in doing and "copy_to" not in doing else "loops"
        )
        return CaseVerdict(late, place)
    return CaseVerdict("crash", f"{ending.signal.name} {place}")


def verdict_of(case: RequestCase) -> CaseVerdict:
    """Runs one case in a process of its own."""
    ((_, verdict, _),) = run_cases(Replayed([case]), range(1), 1)
    return verdict


def reduced(case: RequestCase, verdict: CaseVerdict) -> RequestCase:
    """Returns the case with as few requests as have the same verdict."""
    deadline = time.monotonic() + _EFFORT
    size = max(1, len(case.requests) // 2)
    while time.monotonic() < deadline:
        at = 0
        while at < len(case.requests) and time.monotonic() < deadline:
            requests = case.requests[:at] + case.requests[at + size :]
            outcome = (
                verdict_of(dataclasses.replace(case, requests=requests)) if requests else CaseVerdict("ended")
            )
            if (outcome.kind, outcome.cause) == (verdict.kind, verdict.cause):
                case = dataclasses.replace(case, requests=requests)
            else:
                at += size
        if size == 1:
            break
        size //= 2
    return case


if __name__ == "__main__":
    sys.exit(main())
