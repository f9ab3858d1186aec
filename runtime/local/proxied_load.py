"""Loading of programs in the process of a client of `pw-proxy`: the server compiles and runs them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, override

import jax

from pathways.runtime.bundle.carrier import carrier_of, digest_of, digest_of_part
from pathways.runtime.local.devices import devices_of, devices_of_cluster, mesh_of
from pathways.runtime.local.load import Executable, ports_of
from pathways.runtime.local.memory import MemoryAnalysis
from pathways.runtime.local.recording import CallRecorder
from pathways.runtime.local.server_requests import PROGRAM, ProgramReply, ProgramRequest, send_request
from pathways.runtime.local.slots import aval_of, slot_arrays
from pathways.runtime.plan.plan import Plan
from pathways.runtime.resources.manager import Binding
from pathways.runtime.xla import ifrt, pjrt

REMEDY = "run it without pw-proxy, or with pathways.connect(hosts=...)"
"""End of messages about features that a server does not have."""


def check_not_proxied(work: str) -> None:
    """Checks that no server has the devices: its processes run no Python of a program.

    Args:
      work: the subject and the verb of the message, as in `pw.on_hosts: f runs`.

    Raises:
      RuntimeError: a server has them.
    """
    if pjrt.is_proxied(devices_of_cluster()[0]):
        raise RuntimeError(f"{work} in workers, which a program has not behind pw-proxy; {REMEDY}")


MAX_AHEAD = 96
"""Maximum of the calls of a program that have not ended."""

_CALLS_APART = 32
"""The distance of the calls whose end is waited for: a wait is a message."""

_SMALL = 256
"""Bytes of a result that may live longer than the caller needs it."""


class CallWindow:
    """Limit of how far the calls of a program run ahead of its server, which takes any number of them.

    Every `_CALLS_APART` calls one waits for results of the call that was `MAX_AHEAD` before it. Where the
    caller has deleted or donated its small results, and dropped all others, no call waits.
    """

    def __init__(self) -> None:
        self._count = 0
        self._waiting_results: collections.deque[list[Callable[[], jax.Array | None]]] = collections.deque()

    def wait_for_room(self) -> None:
        """Waits until a further call has room."""
        if len(self._waiting_results) * _CALLS_APART < MAX_AHEAD:
            return
        for result in self._waiting_results.popleft():
            array = result()
            if array is not None and not array.is_deleted():
                # Its readers get its error; and another thread may have donated it by now.
                with contextlib.suppress(RuntimeError):
                    array.block_until_ready()
                return

    def add(self, results: Sequence[jax.Array]) -> None:
        """Notes the results of a call."""
        self._count += 1
        if self._count % _CALLS_APART == 0:
            self._waiting_results.append([_held(result) for result in results])


def _held(array: jax.Array) -> Callable[[], jax.Array | None]:
    """Returns a function with an array as its result: a small one, or a larger one as long as it lives."""
    return weakref.ref(array) if array.nbytes > _SMALL else lambda: array


@dataclasses.dataclass(eq=False)
class ProxiedExecutable(Executable):
    """Program that is loaded on the devices of a server, in the process of a client.

    Attributes:
      client: the IFRT client of the server's devices.
      digest: the digest of its bundle.
      plans: the plans of its sub-programs, or its plan, by the digests that traces of the server have.
      owners: the host of each device of each slice; None where the server has no hosts.
    """

    client: Any
    digest: str
    plans: Mapping[str, Plan]
    owners: Mapping[str, tuple[int, ...]] | None

    @override
    def observe(self, recorder: CallRecorder | None) -> None:
        """Does nothing: the server launches its steps, and records their times."""

    def memory_analysis(self) -> MemoryAnalysis:
        """Returns the memory that one call needs on each slice, by the analysis of the server."""
        return MemoryAnalysis(self._facts.memory)

    def flops(self, computation: str) -> float:
        """Returns the floating-point operations of one launch by XLA's estimate, on all its devices."""
        return self._facts.flops[computation]

    def device_text(self) -> str:
        """Returns XLA's optimized module of each computation on each slice."""
        return self._request(text=True).text

    @functools.cached_property
    def _facts(self) -> ProgramReply:
        return self._request()

    def _request(self, *, text: bool = False) -> ProgramReply:
        request = ProgramRequest(self.digest, text)
        return send_request(self.client, PROGRAM, request, ProgramReply).body


def load_by_server(
    plan: Plan,
    plans: Mapping[str, Plan],
    bundle: bytes,
    bindings: Mapping[str, Binding],
    result_avals: Sequence[pjrt.Aval],
) -> ProxiedExecutable:
    """Requests the server of this process's devices to load a program.

    Args:
      plan: its plan, or one with its arguments and results alone.
      plans: the plans of its sub-programs by name, or its plan with an empty name.
      bundle: the same as a bundle.
      bindings: the devices of each of its slices, by name, in the order of the bundle.
      result_avals: the avals of its results, which may have weak types, and the dtypes of typed PRNG keys.

    Raises:
      JaxRuntimeError: the server or XLA rejects it.
    """
    meshes = {name: mesh_of(binding) for name, binding in bindings.items()}
    slots = slot_arrays(plan, meshes, result_avals)
    passed = [argument for argument in plan.arguments if argument.constant is None]
    inputs, outputs = (tuple(ports_of(plan, values, slots)) for values in (passed, plan.results))
    # Of blocks of replicas, which are a part of the result.
    avals = [result_avals[port.number].update(shape=port.type.shape) for port in outputs]
    keys = {n: pjrt.key_maker(aval) for n, aval in enumerate(avals) if _is_key(aval)}
    words = [aval_of(port.type) if n in keys else avals[n] for n, port in enumerate(outputs)]
    devices = list(itertools.chain.from_iterable(map(devices_of, bindings.values())))
    shardings = [port.sharding for port in outputs]
    program = ifrt.compile_mpmd(carrier_of(bundle), devices, words, shardings)
    run = _in_window(_with_keys(program.execute, keys) if keys else program.execute)
    counts = {name: len(mesh.local_devices) for name, mesh in meshes.items()}
    target: Any = None
    digest = digest_of(bundle)
    return ProxiedExecutable(
        plan,
        inputs,
        outputs,
        run,
        "",
        False,
        {},
        (),
        (),
        target,
        counts,
        devices[0].client,
        digest,
        {digest_of_part(digest, name): part for name, part in plans.items()},
        _owners_of(bindings),
    )


def _owners_of(bindings: Mapping[str, Binding]) -> dict[str, tuple[int, ...]] | None:
    """Returns the host of each device of slices, which is an attribute of devices of several hosts."""
    hosts = {
        name: tuple(getattr(device, "virtual_task_index", -1) for device in devices_of(binding))
        for name, binding in bindings.items()
    }
    return None if any(-1 in of_slice for of_slice in hosts.values()) else hosts


def _is_key(aval: pjrt.Aval) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def _in_window(
    execute: Callable[[list[jax.Array]], list[jax.Array]],
) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """Returns a function that executes within a window of calls."""
    window = CallWindow()

    def run(arrays: list[jax.Array]) -> list[jax.Array]:
        window.wait_for_room()
        results = execute(arrays)
        window.add(results)
        return results

    return run


def _with_keys(
    execute: Callable[[list[jax.Array]], list[jax.Array]],
    keys: Mapping[int, Callable[[jax.Array], jax.Array]],
) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """Returns a function that executes, and makes typed PRNG keys of their words among the results.

    Args:
      keys: the functions that make keys, by the positions of results.
    """

    def run(arrays: list[jax.Array]) -> list[jax.Array]:
        results = execute(arrays)
        for n, make in keys.items():
            results[n] = make(results[n])
        return results

    return run
