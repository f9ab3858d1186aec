"""Harness that sends mutated bundles to the proxy server, as programs of Pathways: each is one status.

  python test/fuzz/mutate_carriers.py --seed 0 --count 5000 --jobs 2 --keep build/fuzz/carriers

Case number n of a seed is always the same, for the same sources. One server compiles what it accepts. The
exit code is 1 after a status that blames the server, a hang, or the end of the server.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import random
import select
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from bundle_mutations import mutated, texts
from bundle_seeds import DEVICES, Parts, seeds_of_child
from corpus import Corpus
from flags import parser_of
from forked import run_all

SECONDS = 60.0
MEMORY = 16 << 30
"""Limit of address space of what makes a bundle: XLA reserves more than it uses."""

REFUSALS = ("INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED")
BUNDLE = "mutated.pwb"


def main() -> int:
    """Runs the harness; returns its exit code."""
    options = parser_of(__doc__, "carriers", 200).parse_args()
    seeds = seeds_of_child(10 * SECONDS, MEMORY)
    corpus = texts(seeds)
    numbers = range(options.first, options.first + options.count)
    tasks = ((number, functools.partial(_make, number, options.seed, seeds, corpus)) for number in numbers)
    endings: collections.Counter[str] = collections.Counter()
    failures = 0
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(DEVICES), "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        [sys.executable, __file__, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        for number, ending in run_all(tasks, options.jobs, SECONDS, MEMORY):
            path = ending.folder / BUNDLE
            if not path.exists():
                endings["unmade"] += 1
                continue
            answer = _answer(server, f"{path} {_devices(options.seed, number)}")
            endings[answer] += 1
            if answer not in ("COMPILED", *REFUSALS):
                failures += 1
                options.keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, options.keep / f"{number}.pwb")
                print(f"case {number}: {answer}")
            if not answer:
                break
            if endings.total() % 200 == 0:
                print(f"{endings.total()} cases", file=sys.stderr)
        server.kill()
    for answer, count in endings.most_common():
        print(f"{count:>6}  {answer or 'the server ended, or did not answer'}")
    print(f"{options.count} cases, {failures} failures")
    return 1 if failures else 0


def _make(
    number: int,
    seed: int,
    seeds: tuple[Parts, ...],
    corpus: Corpus,
    folder: Path,
    note: Callable[[str], None],
) -> None:
    mutated(random.Random(f"{seed} {number}"), seeds, corpus).write(folder / BUNDLE)


def _devices(seed: int, number: int) -> int:
    return random.Random(f"devices {seed} {number}").choice((DEVICES, 1, 2, 3, 4))


def _answer(server: subprocess.Popen[str], request: str) -> str:
    """Returns the answer of the server; empty if it has ended, or takes too long."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{request}\n")
    server.stdin.flush()
    ready, _, _ = select.select([server.stdout], [], [], SECONDS)
    return server.stdout.readline().strip() if ready else ""


def serve() -> None:
    """Compiles the bundles that standard input names as a server does, and writes a line for each."""
    import jax

    from pathways.dialect.syntax.bytecode import bytecode_of
    from pathways.runtime.bundle.carrier import carrier_of
    from pathways.runtime.bundle.file import parse
    from pathways.runtime.proxy.devices import ServedDevices
    from pathways.runtime.proxy.loading.local_backend import LocalBackend
    from pathways.runtime.proxy.programs import compile_program
    from pathways.runtime.proxy.wire import descriptors
    from pathways.runtime.proxy.wire.statuses import StatusError

    messages = descriptors.messages()
    served = ServedDevices(LocalBackend(jax.devices("cpu")), messages)
    serialized = messages["xla.ifrt.Serialized"]
    for number, line in enumerate(sys.stdin):
        path, count = line.split()
        bundle = Path(path).read_bytes()
        with contextlib.suppress(Exception):
            # Most often the devices that it needs, for otherwise nothing would read further.
            sizes = [slice.size for slice in parse(bundle, path).manifest.slices]
            count = count if number % 10 == 0 else min(sum(sizes), DEVICES)
        carrier = bytecode_of(carrier_of(bundle))
        program = messages["xla.ifrt.IfrtIrProgramProto"](ifrt_program=carrier)
        options = messages["xla.ifrt.IfrtIrCompileOptionsProto"](device_ids=range(int(count)))
        answer = "COMPILED"
        try:
            compile_program(
                served,
                serialized(type_name="xla::ifrt::IfrtIRProgram", data=program.SerializeToString()),
                serialized(type_name="xla::ifrt::IfrtIRCompileOptions", data=options.SerializeToString()),
            )
        except StatusError as error:
            answer = "more than one line" if "\n" in error.message else error.code.name
            if answer not in REFUSALS:
                print(error, file=sys.stderr)
        except Exception as error:
            traceback.print_exc()
            answer = type(error).__name__
        print(answer, flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        sys.exit(main())
