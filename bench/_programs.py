"""Programs of the paper, whose times `pw-sim` computes: pipelines, islands, replicas.

They are traced, placed and scheduled as they are; their arrays are small, and durations and bandwidths are
those of the large ones. Nothing runs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import replicas

import pathways as pw
from pathways.compiler.stages import Compiled
from pathways.runtime.plan.plan import Transfer

DEVICES = 16
WIDTH, ROWS = 8, 4

TOKENS = 2**21
"""Tokens of a step of the 3B model: 2,048 sequences of 1,024; assumed."""
MODEL = 2048
"""Width of the model: the number of bf16 numbers per token between stages."""
NIC = 12.5e9
"""Bytes per second from a host to another island: 100 Gbit/s; assumed. A stage on 8 cores is one host."""
HOP = 1e-3
"""Seconds of a message from island to island; assumed, and high."""
BACKWARD = 2.0
"""Ratio of a backward's time to a forward's."""

SPMD, PIPELINE_4 = 125.7e3, 133.7e3
"""Tokens in a second of 128 cores (paper): one SPMD program, and S=4 M=16, from which all others follow."""


@dataclasses.dataclass(frozen=True)
class ProgramRow:
    """Figure of a program.

    Attributes:
      case: the program.
      paper: the paper's figure.
      simulated: ours; None if the paper's is an input.
      unit: the unit of both.
      inputs: the inputs of the simulation.
    """

    case: str
    paper: float
    simulated: float | None
    unit: str
    inputs: str

    @property
    def off(self) -> float | None:
        """The relative difference of ours from the paper's."""
        return None if self.simulated is None else self.simulated / self.paper - 1


@functools.cache
def pipeline(stages: int, microbatches: int) -> Compiled:
    """Returns a training step of some stages, one on each slice."""
    devices = pw.make_virtual_device_set()
    layers = [pw.jit(replicas.layer, devices=devices.add_slice(1, "x")) for _ in range(stages)]
    step = pw.program(replicas.step_of(layers, microbatches), schedule="gpipe", donate_argnums=0)
    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * stages
    rows = jax.ShapeDtypeStruct((microbatches * ROWS, WIDTH), np.float32)
    return step.lower(weights, (rows, rows)).compile()


def seconds(stages: int, microbatches: int, part: float, sent: float = 0.0) -> float:
    """Returns the seconds of a step.

    Args:
      stages: their number.
      microbatches: their number.
      part: seconds of a stage for a microbatch, forward and backward.
      sent: seconds of a transfer of a microbatch to the next stage; 0 for none, else a `HOP` more.
    """
    compiled = pipeline(stages, microbatches)
    forward = part / (1 + BACKWARD) * 1e3
    times = {"kinds": {"fwd": f"{forward}ms", "bwd": f"{forward * BACKWARD}ms"}}
    if not sent:
        return compiled.timeline(times).step_time
    plan = compiled.plan
    nbytes = max(plan.bytes_moved(step) for step in plan.steps if isinstance(step, Transfer))
    link = {"latency": f"{HOP * 1e3}ms", "bandwidth": f"{nbytes / sent}B/s"}
    return compiled.timeline(times, **link).step_time


def pipelines() -> Iterator[ProgramRow]:
    """Yields the 3B model as pipelines, against SPMD, and over islands."""
    # All devices together, without bubbles; from S=4 M=16.
    whole = TOKENS / PIPELINE_4 / (seconds(4, 16, 1.0) / 16)

    def rate(stages: int, microbatches: int, sent: float = 0.0) -> float:
        return TOKENS / seconds(stages, microbatches, whole / microbatches, sent)

    collectives = 1 - SPMD * whole / TOKENS
    yield ProgramRow(
        "3B, 128 cores, SPMD",
        SPMD,
        None,
        "tokens/s",
        f"an input: its collectives take {collectives:.1%} of its step, where the pipelines idle",
    )
    yield ProgramRow(
        "3B, 128 cores, S=4 M=16",
        PIPELINE_4,
        None,
        "tokens/s",
        f"an input: {TOKENS} tokens take {whole:.1f} s without bubbles, a backward twice a forward",
    )
    follows = "follows from S=4 M=16: the same work, other bubbles"
    for stages, microbatches, paper in ((8, 32, 132.7e3), (16, 64, 131.4e3)):
        case = f"3B, 128 cores, S={stages} M={microbatches}"
        yield ProgramRow(case, paper, rate(stages, microbatches), "tokens/s", follows)
    alone = rate(16, 64)
    yield ProgramRow(
        "3B, 512 cores, S=16 M=64", 507.8e3, 4 * alone, "tokens/s", "four times 128 cores and as much work"
    )
    for stages, microbatches, paper in ((8, 32, 132.7e3), (16, 64, 131.4e3)):
        found = rate(stages, microbatches) / SPMD
        yield ProgramRow(f"3B, S={stages} against SPMD", paper / SPMD, found, "x", "the rows above")
    sent = TOKENS / 64 * MODEL * 2 / NIC
    yield ProgramRow(
        "four islands of 32 cores against one of 128, S=16 M=64",
        1.0,
        rate(16, 64, sent) / alone,
        "x",
        f"as if each hop crossed: {sent * 1e3:.1f} ms at 100 Gbit/s and {HOP * 1e3:g} ms; "
        f"{TOKENS} tokens of {MODEL} bf16 (assumed)",
    )


def islands() -> Iterator[ProgramRow]:
    """Yields data parallelism over two islands; see `bench/replicas.py`."""
    for case, paper in zip(replicas.runs(), (0.972, 1.95), strict=True):
        part = case.compute / replicas.simulated(1, case.compute, case.exchange)
        both = f"{case.compute:.1f} s of computation, {case.exchange:.2f} s of exchange, none hidden"
        twice = paper > 1
        yield ProgramRow(
            f"{case.name} against {'one' if twice else 'one island of 1024'}",
            paper,
            2 * part if twice else part,
            "x",
            f"{both}: {case.inputs}",
        )
