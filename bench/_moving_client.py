"""Client of a service that runs steps on a state of 64 MB, and reports the longest time between two of them.

Each line on standard input begins a measurement; the next one ends it, and its answer is the longest time.
"""

from __future__ import annotations

import sys
import threading
import time

import jax
import numpy as np

import pathways as pw

ARRAYS, SIDE = 16, 1024


def main() -> None:
    place, token, name = sys.argv[1:]
    pw.connect(place, token=token, client=name)
    slice = pw.make_virtual_device_set().add_slice((1,), ("x",))
    update = pw.jit(lambda state: jax.tree.map(lambda w: w * 0.5 + 1, state), devices=slice)
    step = pw.program(lambda state: update(state), donate_argnums=0)
    start = [np.zeros((SIDE, SIDE), np.float32) for _ in range(ARRAYS)]
    state = step(start)
    lines: list[float] = []
    longest, last = 0.0, time.perf_counter()

    def read() -> None:
        for _ in sys.stdin:
            lines.append(0.0)
        lines.append(-1.0)

    threading.Thread(target=read, daemon=True).start()
    print("ready", flush=True)
    while True:
        try:
            state = step(state)
            jax.block_until_ready(state)
        except pw.HostError:
            state = start
            continue
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        if lines:
            if lines.pop() < 0:
                return
            print(longest, flush=True)
            longest = 0.0


if __name__ == "__main__":
    main()
