"""Processes whose devices form one island, by `jax.distributed`. Its private calls are made here alone."""

from __future__ import annotations

import dataclasses
import functools

import jax
from jax._src import distributed, xla_bridge
from jaxlib import _jax

_HEARTBEAT_TIMEOUT_S = 100
"""Seconds until JAX itself terminates all processes if one does not respond; the controller is faster."""


def join(
    coordinator: str, address: str, *, rank: int, size: int, cpu_devices: int, start_seconds: int
) -> None:
    """Joins this process to others, so that JAX sees the devices of all of them.

    Must be called before JAX starts. `jax.devices()` then has the devices of all processes; this process's
    devices have the `process_index` `rank`.

    Args:
      coordinator: the address and port on which the first process listens; no one else may reach it.
      address: the address of this process, on which CPU collectives listen: JAX's default is the address that
        the host name resolves to, which other hosts may not reach.
      rank: the number of this process.
      size: the number of processes.
      cpu_devices: the number of CPU devices of each process.
      start_seconds: the time limit for the start of all processes.

    Raises:
      RuntimeError: not all processes have joined in time.
    """
    jax.config.update("jax_num_cpu_devices", cpu_devices)
    # The service would install its own handler of SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        size,
        rank,
        coordinator_bind_address=coordinator,
        initialization_timeout=start_seconds,
        heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT_S,
    )
    registered = xla_bridge._backend_factories["cpu"]
    xla_bridge._backend_factories["cpu"] = dataclasses.replace(
        registered, factory=functools.partial(_cpu_client, address)
    )


def _cpu_client(address: str) -> object:
    collectives = _jax.make_gloo_tcp_collectives(
        distributed_client=distributed.global_state.client, hostname=address
    )
    return xla_bridge.make_cpu_client(collectives)
