"""Compiles the computations of a bundle in a process of its own first: XLA dies of what it does not expect.

What is compiled is kept in the store of compiled code, where the process that asked for it finds it.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
from collections.abc import Sequence

import jax

from pathways.runtime.bundle.examine import allowance, examine_apart, examine_within_limits, run_checks
from pathways.runtime.bundle.file import Bundle
from pathways.runtime.bundle.limits import memory_of_at_most
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.plan.plan import Launch, Plan
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.compile_cache import CompileError, Request, load_all

_MEMORY = 12 * 2**30
"""Bytes of address space for compiling beyond those for reading. A GPU needs more than any limit allows."""
_PATIENCE = 10
"""How many times as long as reading it compiling a bundle may take: at least five minutes."""


def rehearse_apart(bundle: Bundle, devices: int) -> None:
    """Checks a bundle and compiles its computations, in a new process.

    Args:
      bundle: the bundle.
      devices: how many devices this process has.

    Raises:
      BundleError: says what is wrong; also when the process crashed or took too long.
    """
    examine_apart(
        bundle,
        "pathways.runtime.xla.rehearse",
        str(devices),
        doing="compiling its program",
        seconds=_PATIENCE * allowance(bundle)[0],
    )


def rehearse(bundle: Bundle, devices: int) -> None:
    """What the new process does.

    Args:
      bundle: the bundle.
      devices: how many devices the process that asked has.

    Raises:
      BundleError: says what is wrong.
    """
    program = examine_within_limits(bundle)
    platform = bundle.manifest.platform
    if platform == "tpu":
        return  # They belong to one process at a time: the one that asks.
    # This process computes nothing, and leaves the memory of a GPU to the one that asks.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax.config.update("jax_platforms", platform)
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", devices)
        pjrt.initialize_lapack()
    memory = allowance(bundle)[1] + _MEMORY if platform == "cpu" else resource.RLIM_INFINITY
    try:
        with memory_of_at_most(memory):
            for part in program.parts.values():
                load_all(_requests(part.plan, jax.devices()), lambda done, total: None)
    except CompileError as error:
        raise BundleError(f"{bundle.path}: {error}") from None
    except MemoryError:
        raise BundleError(f"{bundle.path}: compiling its program takes too much memory") from None


def _requests(plan: Plan, devices: Sequence[jax.Device]) -> list[Request]:
    """Each computation on each number of devices, but for slices that cannot be had anyway."""
    unlike = {}
    for step in plan.steps:
        if isinstance(step, Launch):
            computation = plan.computations[step.computation]
            count = 1 if computation.local else plan.slices[step.slice].size
            unlike[step.computation, count] = Request(computation, step.slice, tuple(devices[:count]))
    return [request for (_, count), request in unlike.items() if count <= len(devices)]


if __name__ == "__main__":
    sys.exit(run_checks(functools.partial(rehearse, devices=int(sys.argv[3]))))
