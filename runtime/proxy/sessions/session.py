"""Session of a client: the reply to each request of its stream, in order.

Requests are dispatched one after the other, in the order of the stream, by one thread. That thread does not
wait for devices: other threads reply to requests that have to. It may wait for a host buffer, which the
client sends in a separate call. A session owns the values of its handles, and frees them when it ends.

The one exception are loops of programs of Pathways that end depending on values: the thread waits for the
boolean after each chunk of iterations. Later requests wait until the loop ends, since they may donate or
delete its arguments. Replies to earlier requests are sent before. The end of the session, or the loss of a
slice of the program, ends the loop after a chunk.

The client chooses the handles of most results and sends the next request without waiting for a reply. An
error of such a request is therefore stored under its handles, and raised when one of them is read.

A handler gets the state of the session and the bodies of request and response. Handlers read all fields of
requests, or reject them, except fields without effect:

- `user_context_id` and `payloads` are the client's own, for its messages and traces; so are payloads of the
  errors that it creates arrays from;
- `version_number` of serialised values was agreed upon when the client connected;
- `launch_id`, `execution_stream_id` and `deletion_stream_id` order the work of processes or streams, but one
  thread does all work of a session, in the order of its stream;
- `untuple_result`: results are never tuples;
- `single_device_shard_semantics`: all shards are addressable;
- `copy_semantics` of requests that split or join arrays: they share buffers, as in local JAX;
- `input_specs` of a remap plan: the server knows the arrays;
- `compile_options` of plugin programs, which are empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.host_buffers import HostBuffers
from pathways.runtime.proxy.sessions import array_requests, program_requests, session_requests
from pathways.runtime.proxy.sessions.replies import DeferredReply, ReplyEncoder, wait_all
from pathways.runtime.proxy.sessions.state import Handler, Run, SessionState, Watch
from pathways.runtime.proxy.wire.events import Buffer
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of

Send = Callable[[bytes], None]
"""Function that sends a serialised `IfrtResponse` to the client, from any thread."""

_HANDLERS: Mapping[str, Handler] = {
    **session_requests.HANDLERS,
    **array_requests.HANDLERS,
    **program_requests.HANDLERS,
}


class ProxySession:
    """Session of a client, on the side of the server.

    Args:
      number: its id, which calls with host buffers refer to.
      served: the devices.
      send: sends replies.
      wait: runs functions that wait for arrays or compile.
      watch: reports long activities.
      wake: has the dispatching thread call `free_lost_arrays` when it is idle.
      flush: sends the replies to earlier requests, before the dispatching thread waits for a loop.
    """

    def __init__(
        self,
        number: int,
        served: ServedDevices,
        send: Send,
        wait: Run,
        watch: Watch = lambda *_: contextlib.nullcontext(),
        wake: Callable[[], None] = lambda: None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.state = SessionState(number, served, wait, watch, flush)
        self._served = served
        self._send = send
        self._wait = wait
        self._wake = wake
        self._replies = ReplyEncoder(served.messages)
        # Replies that other threads compute, with the ids of their requests. A thread that has computed one
        # and a thread that handles a lost island may both want to send it. Only the thread that removes it
        # from here sends it, so that each is sent once.
        self._pending: dict[DeferredReply, int] = {}

    @property
    def host_buffers(self) -> HostBuffers:
        """Host buffers that the client has stored, or will fetch."""
        return self.state.host_buffers

    @property
    def is_closed(self) -> bool:
        """Whether the session has ended."""
        return self.state.is_closed

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Numbers of arrays, programs, futures and host buffers that the session owns."""
        return self.state.counts

    def dispatch(self, data: Buffer) -> bytes | None:
        """Handles the next request of the stream; returns its reply, or None when that is sent later.

        Raises:
          ValueError: the data is not a request; the session cannot continue.
        """
        request = self._served.messages.parse("xla.ifrt.proxy.IfrtRequest", data)
        self.free_lost_arrays()
        op_id = request.request_metadata.op_id
        kind = request.WhichOneof("request")
        response = self._replies.new()
        try:
            handler = _HANDLERS.get(kind or "")
            if handler is None:
                raise StatusError(
                    StatusCode.UNIMPLEMENTED, f"requests of the kind {kind!r} are not supported by the server"
                )
            body = getattr(request, kind)
            body_of_response = getattr(response, kind.removesuffix("request") + "response")
            body_of_response.SetInParent()
            deferred = handler(self.state, body, body_of_response)
        except Exception as error:
            return self._replies.encode_error(op_id, status_of(error))
        if deferred is None:
            return self._replies.encode(op_id, response)
        self._pending[deferred] = op_id
        self._wait(lambda: self._reply_later(deferred, response))
        if self.state.has_new_losses:
            self._fail_pending()  # `handle_loss` was called before the reply was pending.
        return None

    def free_lost_arrays(self) -> None:
        """Frees the arrays on islands that were lost; called, like `dispatch`, by the dispatching thread."""
        if self.state.has_new_losses:
            self.state.lose_arrays()

    def handle_loss(self) -> None:
        """Handles the loss of an island; called from any thread."""
        # Not left to the dispatching thread, which may wait for the client.
        self._fail_pending()
        self._wake()

    def _fail_pending(self) -> None:
        """Replies to requests that wait for arrays on lost islands; called from any thread."""
        lost = self._served.island_states.lost
        for deferred in tuple(self._pending):
            error = next(filter(None, (self.state.loss_of(array, lost) for array in deferred.waited)), None)
            op_id = None if error is None else self._pending.pop(deferred, None)
            if error is not None and op_id is not None and not self.state.is_closed:
                self._send(self._replies.encode_error(op_id, error))

    def close(self) -> None:
        """Frees all values of the session; later replies are dropped."""
        self.state.close()

    def interrupt(self) -> None:
        """Wakes requests that wait for host buffers, files, long compilations or loops, with an error."""
        self.state.interrupt()

    def _reply_later(self, deferred: DeferredReply, response: Any) -> None:
        # Not the error itself: its traceback would keep this frame, and with it the arrays, in memory.
        failed: StatusError | None = None
        try:
            wait_all(deferred.waited)
        except Exception as error:
            failed = status_of(error)
        op_id = self._pending.pop(deferred, None)
        if op_id is None:  # An island was lost meanwhile, and the error of the loss was the reply.
            return
        try:
            if failed is None:
                deferred.fill()
                reply = self._replies.encode(op_id, response)
        except Exception as error:
            failed = status_of(error)
        if failed is not None:
            reply = self._replies.encode_error(op_id, failed)
        if not self.state.is_closed:
            self._send(reply)
