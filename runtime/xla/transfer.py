"""JAX's transfer server, which moves arrays between processes. Experimental in JAX, so used here alone."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import transfer as jax_transfer

from pathways.runtime.xla import pjrt

_CHUNK = 4 << 20
"""Bytes that are copied at once; JAX's default of 256 MiB is half as fast."""

device_list = pjrt.device_list


def start_server(client: Any, address: str) -> Any:
    """Starts a server on an address; JAX's default listens on every interface.

    Without transport addresses, the process aborts at the first pull. Each connection binds to them anew, so
    their port must be 0.

    Args:
      client: JAX's client of the devices that send and receive.
      address: address and port. The server also starts on a port that another such server of the same user
        listens on, and each connection then goes to one of the two; see `runtime.resources.ports`.

    Returns:
      The server, which stops when nothing refers to it. One that is deleted at once, before its thread
      runs, may leave its socket open until the process exits.

    Raises:
      OSError: the server cannot listen there.
    """
    transport = address.rpartition(":")[0] + ":0"
    try:
        return jax_transfer.start_transfer_server(client, address, [transport] * 2, transfer_size=_CHUNK)
    except jax.errors.JaxRuntimeError as error:
        raise OSError(f"no transfer server on {address}: {error}") from None


def error_array(shape: jax.ShapeDtypeStruct, message: str) -> Any:
    """Returns an array that is an error: every read of it, in any process, raises the message."""
    return jax_transfer.make_error_array(shape, message)


def copied(arrays: Sequence[Any], devices: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
    """Returns copies of arrays on the same devices, which stay valid when the originals are deleted."""
    return pjrt.copy_arrays(list(arrays), devices, shardings, [pjrt.ALWAYS_COPY] * len(arrays))


def poison(connection: Any) -> None:
    """Closes a connection: all pending pulls on it become errors, even if the other side does not respond."""
    connection._poison_connection()


def cancel(server: Any, number: int) -> None:
    """Frees the arrays that a server offers under a number.

    JAX has no such call. But the server frees the arrays under a number when it gets another one for it; and
    that one, a single byte with a timeout, when the timeout has passed.
    """
    until = datetime.datetime.now() + datetime.timedelta(seconds=1)
    server.await_pull(number, [jax.numpy.zeros((), jax.numpy.int8)], timeout=until)
