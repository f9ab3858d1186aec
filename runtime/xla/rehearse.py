"""Trial compilation of an untrusted bundle in a separate process, since unexpected input may crash XLA.

The code goes to the store of compiled code, from which the requesting process then loads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import Sequence

import jax

from pathways.runtime.bundle.examine import allowance, examine_within_limits
from pathways.runtime.bundle.file import Bundle, read
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.plan.plan import Launch, Plan
from pathways.runtime.resources.child_process import LimitedProcess, NoReplyError, serve_requests
from pathways.runtime.resources.process_limits import limit_memory
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.compile_cache import CompileError, Request, load_all

_MEMORY = 12 * 2**30
"""Bytes of address space for compilation, in addition to those for reading. There is no limit for GPUs, whose
drivers reserve more address space than any limit allows."""
_TIMEOUT_FACTOR = 10
"""Time limit of compilation, as a multiple of the time limit for reading: at least five minutes in all."""


def rehearse_apart(bundle: Bundle, devices: int) -> None:
    """Checks a bundle and compiles its computations, in a new process.

    Args:
      devices: the number of devices of this process; with 0 it only checks the bundle.

    Raises:
      BundleError: a check failed, or the process crashed or exceeded the time limit.
    """
    request = json.dumps([bundle.path, devices]).encode()
    try:
        with contextlib.closing(LimitedProcess("pathways.runtime.xla.rehearse")) as process:
            verdict = json.loads(process.call(request, _TIMEOUT_FACTOR * allowance(bundle)[0]))
    except NoReplyError as error:
        raise BundleError(f"{bundle.path}: MLIR or XLA {error} while compiling its program") from None
    if "error" in verdict:
        raise BundleError(verdict["error"])
    # The process read the path itself: its verdict holds only for the same bytes.
    if verdict["digest"] != bundle.digest:
        raise BundleError(f"{bundle.path}: the file was changed while it was read")


def rehearse(bundle: Bundle, devices: int) -> None:
    """Checks a bundle and compiles its computations, in the new process.

    Args:
      devices: see `rehearse_apart`.

    Raises:
      BundleError: a check failed.
    """
    program = examine_within_limits(bundle)
    platform = bundle.manifest.platform
    if not devices or platform == "tpu":
        return  # TPUs belong to one process at a time: the requesting one.
    # This process runs no computation, and must leave the memory of a GPU to the requesting one.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax.config.update("jax_platforms", platform)
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", devices)
        pjrt.initialize_lapack()
    memory = allowance(bundle)[1] + _MEMORY if platform == "cpu" else resource.RLIM_INFINITY
    try:
        with limit_memory(memory):
            for sub_program in program.sub_programs.values():
                load_all(_requests(sub_program.plan, jax.devices()), lambda done, total: None)
    except CompileError as error:
        raise BundleError(f"{bundle.path}: {error}") from None
    except MemoryError:
        raise BundleError(f"{bundle.path}: compiling its program takes too much memory") from None


def _requests(plan: Plan, devices: Sequence[jax.Device]) -> list[Request]:
    """Returns a request for each computation and number of devices, as far as there are as many devices."""
    distinct = {}
    for step in plan.steps:
        if isinstance(step, Launch):
            computation = plan.computations[step.computation]
            count = 1 if computation.local else plan.slices[step.slice].size
            distinct[step.computation, count] = Request(computation, step.slice, tuple(devices[:count]))
    return [request for (_, count), request in distinct.items() if count <= len(devices)]


def _verdict(request: bytes) -> bytes:
    path, devices = json.loads(request)
    try:
        bundle = read(path)
        rehearse(bundle, devices)
        verdict = {"digest": bundle.digest}
    except BundleError as error:
        verdict = {"error": str(error)}
    return json.dumps(verdict).encode()


if __name__ == "__main__":
    serve_requests(_verdict)
