"""`jax.distributed`: processes whose devices are one island. Its private parts are reached here alone."""

from __future__ import annotations

import dataclasses
import functools

import jax
from jax._src import distributed, xla_bridge
from jaxlib import _jax

_PATIENCE = 100
"""Seconds until JAX itself ends processes of which one is silent; the controller is faster."""


def join(
    coordinator: str, address: str, *, rank: int, size: int, cpu_devices: int, start_seconds: int
) -> None:
    """Makes this process one of several whose devices JAX takes for those of one machine.

    Before JAX has started. Then `jax.devices()` has the devices of all, and those of this process have the
    `process_index` `rank`.

    Args:
      coordinator: address and port on which the first of them listens; no one else may reach it.
      address: that of this process, on which CPU collectives listen: by default they take what the name of
        the machine stands for.
      rank: the number of this process.
      size: how many there are.
      cpu_devices: how many CPU devices each has.
      start_seconds: how long the others may take to start.

    Raises:
      RuntimeError: they do not get together.
    """
    jax.config.update("jax_num_cpu_devices", cpu_devices)
    # It would take SIGTERM for itself.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        size,
        rank,
        coordinator_bind_address=coordinator,
        initialization_timeout=start_seconds,
        heartbeat_timeout_seconds=_PATIENCE,
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
