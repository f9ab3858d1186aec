"""Data of training over hosts: checkpoints and input, compared with Orbax and NumPy alone.

python bench/data.py [--only save] [--gib 1] [--hosts 4] [--folder /dev/shm]

Checkpoints are of f32 in 32 leaves, on hosts that share the cores of this machine. Plain Orbax saves and
restores as many arrays of one process, which knows nothing of pathways. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import jax
import numpy as np
from _data_rows import WIDTH, rows

import pathways as pw

LEAVES = 32
ROUNDS = 3

PLAIN = """
import json, sys, time
import jax, jax.numpy as jnp
import orbax.checkpoint.experimental.v1 as ocp
folder, gib, compress = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "1"
rounds, leaves = map(int, sys.argv[4:])
keys = jax.random.split(jax.random.key(0), leaves)
state = [jax.random.normal(key, (1024, int(gib * 2**18) // leaves)) for key in keys]
jax.block_until_ready(state)
for n in range(rounds + 1):
    context = ocp.Context()
    context.array.saving.use_compression = compress
    began = time.perf_counter()
    with context:
        response = ocp.save_async(f"{folder}/{n}", state)
        returned = time.perf_counter() - began
        response.result()
    written = time.perf_counter() - began
    like = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in state]
    began = time.perf_counter()
    jax.block_until_ready(ocp.load(f"{folder}/{n}", like))
    restored = time.perf_counter() - began
    ocp.delete(f"{folder}/{n}")
    print(json.dumps([returned, written, restored]), flush=True)
"""


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process, the controller."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_memory() -> float:
    """Returns the peak memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def slices(hosts: int) -> list[pw.VirtualSlice]:
    pw.connect(hosts=hosts)
    devices = pw.make_virtual_device_set()
    return [devices.add_slice(1, "x") for _ in range(hosts)]


def checkpoints(options: argparse.Namespace, folder: str, *, compress: bool) -> Iterable[str]:
    """Measures saves and restores of one size, in turn with those of plain Orbax."""
    gib, hosts = options.gib, options.hosts
    shape = (1024, int(gib * 2**18) // LEAVES)

    def born(key: jax.Array) -> list[jax.Array]:
        return [jax.random.normal(one, shape) for one in jax.random.split(key, LEAVES // hosts)]

    makers = [pw.jit(born, devices=slice) for slice in slices(hosts)]
    init = pw.program(lambda key: [make(key) for make in makers]).lower(jax.random.key(0)).compile()
    state = init(jax.random.key(1))
    jax.block_until_ready(state)
    ours: list[tuple[float, ...]] = []
    for n in range(ROUNDS + 1):
        memory, cpu, began = peak_memory(), cpu_seconds(), time.perf_counter()
        saving = pw.checkpoint.save(f"{folder}/ours", state, n, compress=compress, max_to_keep=1)
        returned = time.perf_counter() - began
        saving.wait()
        written, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        memory, began = peak_memory() - memory, time.perf_counter()
        jax.block_until_ready(pw.checkpoint.restore(f"{folder}/ours", init.out_info))
        ours.append((returned, written, time.perf_counter() - began, cpu, memory))
    del state
    arguments = [f"{folder}/plain", str(gib), str(int(compress)), str(ROUNDS), str(LEAVES)]
    command = [sys.executable, "-c", PLAIN, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = [json.loads(line) for line in done.stdout.splitlines()]
    how = "zstd" if compress else "raw"
    first, plain = ours[0], [statistics.median(column) for column in zip(*theirs[1:], strict=True)]
    returned, written, restored, cpu, memory = (
        statistics.median(column) for column in zip(*ours[1:], strict=True)
    )
    yield f"{how}: save returns {returned:.2f} s, first {first[0]:.2f} (0.5, 1.5), plain {plain[0]:.2f}"
    for what, own, other, target in (
        ("written", written, plain[1], 1.2 if compress else 1.5),
        ("restored", restored, plain[2], 1.5),
    ):
        ratio = own / other
        yield f"{how}: {what} {own:.2f} s, plain {other:.2f}, ratio {ratio:.2f} (to reach {target})"
    yield f"{how}: controller CPU {cpu:.2f} s (to reach 0.5), first {first[3]:.2f}"
    yield f"{how}: controller memory +{memory:.0f} MiB (to reach 32), first +{first[4]:.0f}"


def batches(options: argparse.Namespace, folder: str) -> Iterable[str]:
    """Measures batches of 64 MiB, produced by hosts, beside NumPy that stacks the same rows here."""
    hosts, count, per_batch = options.hosts, 256 // options.hosts, 64 * 2**20
    reads = [pw.jit(lambda x: x[0, 0], devices=slice) for slice in slices(hosts)]
    like = [np.zeros((count, WIDTH), np.float32)] * hosts
    step = pw.program(lambda batch: [f(x) for f, x in zip(reads, batch, strict=True)]).lower(like).compile()
    speeds, cpus, alone = [], [], []
    for _ in range(ROUNDS):
        with pw.prefetch(pw.on_hosts(rows, parts=hosts), step, "batch", rows=count) as ready:
            for _ in range(5):
                step(next(ready))
            began, cpu = time.perf_counter(), cpu_seconds()
            for _ in range(30):
                results = step(next(ready))
            jax.block_until_ready(results)
            speeds.append(30 * per_batch / (time.perf_counter() - began) / 1e9)
            cpus.append((cpu_seconds() - cpu) / 30 * 1e3)
        source, memory = rows(hosts), np.empty((hosts, count, WIDTH), np.float32)
        for n in range(8):
            began = time.perf_counter()
            for place in range(count):
                for part, row in enumerate(source[n * count + place]):
                    memory[part, place] = row
            if n:
                alone.append(per_batch / (time.perf_counter() - began) / 1e9)
    yield (
        f"batches of 64 MiB: {statistics.median(speeds):.2f} GB/s (to reach 1.5), stacked alone "
        f"{statistics.median(alone):.2f}; controller CPU {statistics.median(cpus):.1f} ms each (to reach 2)"
    )


CASES: dict[str, Callable[[argparse.Namespace, str], Iterable[str]]] = {
    "save-zstd": lambda options, folder: checkpoints(options, folder, compress=True),
    "save-raw": lambda options, folder: checkpoints(options, folder, compress=False),
    "batches": batches,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only cases with this text in their names")
    parser.add_argument("--gib", type=float, default=1.0, help="size of a checkpoint (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=4, help="hosts (default: %(default)s)")
    parser.add_argument("--folder", default="/dev/shm", help="where checkpoints go (default: %(default)s)")
    options = parser.parse_args()
    print(f"command: {' '.join(['python', *sys.argv])}")
    print(f"jax {jax.__version__}, {len(os.sched_getaffinity(0))} cores")
    for name, case in CASES.items():
        if options.only not in name:
            continue
        folder = Path(tempfile.mkdtemp(dir=options.folder))
        try:
            for line in case(options, str(folder)):
                print(line, flush=True)
        finally:
            pw.disconnect()
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
