"""Replies to requests: encoded at once, or computed by another thread."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.persistence import FileJob
from pathways.runtime.proxy.wire.descriptors import Messages
from pathways.runtime.proxy.wire.statuses import StatusError


@dataclasses.dataclass(frozen=True, eq=False)
class DeferredReply:
    """Reply that another thread computes.

    Attributes:
      waited: the arrays that it waits for first. If one of them has no value, its error is the reply.
      fill: fills the body of the response, or raises.
    """

    waited: Sequence[ProxyArray | FileJob] = ()
    fill: Callable[[], None] = lambda: None


def wait_for(waited: Sequence[ProxyArray | FileJob]) -> DeferredReply | None:
    """Returns a reply that waits for arrays, or None if they are ready.

    Raises:
      StatusError: all are ready, and one of them is an error.
    """
    if all(array.is_ready for array in waited):
        wait_all(waited)
        return None
    return DeferredReply(waited)


def wait_all(waited: Sequence[ProxyArray | FileJob]) -> None:
    """Waits until arrays are ready.

    Raises:
      StatusError, JaxRuntimeError: one of them has no value.
    """
    for array in waited:
        array.wait()


class ReplyEncoder:
    """Encoder of the replies of a session, for any thread."""

    def __init__(self, messages: Messages) -> None:
        self.new = messages["xla.ifrt.proxy.IfrtResponse"]
        self._numbers = itertools.count()

    def encode(self, op_id: int, response: Any) -> bytes:
        """Returns the reply to a request that succeeded."""
        metadata = response.response_metadata
        metadata.op_id = op_id
        metadata.status.SetInParent()
        # The client counts replies with a body only, so errors get no number.
        metadata.seq_num = next(self._numbers)
        return response.SerializeToString()

    def encode_error(self, op_id: int, error: StatusError) -> bytes:
        """Returns the reply to a request that failed."""
        response = self.new()
        response.response_metadata.op_id = op_id
        response.response_metadata.status.code = int(error.code)
        response.response_metadata.status.message = error.message
        return response.SerializeToString()
