"""JAX's transfer server, which moves arrays from process to process. Experimental in JAX, so in one place."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import transfer as jax_transfer

from pathways.runtime.xla import pjrt

_CHUNK = 4 << 20
"""Bytes that are copied at once; JAX's default of 256 MiB leaves half of the speed."""

device_list = pjrt.device_list


def start_server(client: Any, address: str) -> Any:
    """Starts a server on an address: its own default listens on every interface.

    Without transport addresses the process aborts at the first pull. Each connection binds to them anew, so
    that they can have no port of their own.

    Args:
      client: the client of JAX whose devices give and take.
      address: address and port. On a port of another such server of the same user it starts as well, and each
        connection gets to one of the two.

    Returns:
      The server, which stops when nothing refers to it.

    Raises:
      OSError: it cannot listen there.
    """
    transport = address.rpartition(":")[0] + ":0"
    try:
        return jax_transfer.start_transfer_server(client, address, [transport] * 2, transfer_size=_CHUNK)
    except jax.errors.JaxRuntimeError as error:
        raise OSError(f"no transfer server on {address}: {error}") from None


def error_array(shape: jax.ShapeDtypeStruct, message: str) -> Any:
    """An array that is an error: whoever reads it, in this process or another, gets the message."""
    return jax_transfer.make_error_array(shape, message)


def copied(arrays: Sequence[Any], devices: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
    """Copies of arrays where they are, which live on when these are donated or deleted."""
    return pjrt.copy_arrays(list(arrays), devices, shardings, [pjrt.ALWAYS_COPY] * len(arrays))


def poison(connection: Any) -> None:
    """Ends a connection: all that was asked for on it is an error, also where the other side is silent."""
    connection._poison_connection()


def cancel(server: Any, number: int) -> None:
    """Keeps nothing any more that was to be pulled under a number.

    The server frees what it holds under a number when it gets something else for it, and that, which nothing
    pulls either, some time later.
    """
    until = datetime.datetime.now() + datetime.timedelta(seconds=1)
    server.await_pull(number, [jax.numpy.zeros((), jax.numpy.int8)], timeout=until)
