"""Host buffers that clients on the same machine write to files in place of the connection."""

from __future__ import annotations

import os
import threading

from pathways.runtime.proxy.host_buffers import FileArrival, open_file
from pathways.runtime.proxy.sessions.session import ProxySession
from pathways.runtime.proxy.wire.statuses import StatusCode, StatusError, status_of
from pathways.runtime.resources.folders import PermittedFolders

TRANSFER_FOLDER_VARIABLE = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"
"""Folder in which the client in JAX, which reads the same variable, writes large host buffers to files."""


class TransferFolder:
    """Folder of `TRANSFER_FOLDER_VARIABLE`, which one session at a time may use.

    Args:
      folders: the folders that the server may use.
    """

    def __init__(self, folders: PermittedFolders) -> None:
        self._folders = folders
        self._lock = threading.Lock()
        self._owner: ProxySession | None = None

    def read(self, session: ProxySession, handle: int, size: int) -> None:
        """Announces a host buffer that the client of a session has written to a file.

        Raises:
          StatusError: the file cannot be read; the request that needs it has the same error.
        """
        buffers = session.host_buffers
        try:
            file = self._open_file(session, handle, size)
        except Exception as error:
            status = status_of(error)
            if isinstance(error, OSError) and error.errno is not None:
                status = StatusError(
                    StatusCode.FAILED_PRECONDITION, f"folder of large transfers: {error.strerror}"
                )
            buffers.fail(handle, status)
            raise status from None
        buffers.announce(handle, FileArrival(buffers, handle, size, file))

    def _open_file(self, session: ProxySession, handle: int, size: int) -> int:
        folder = os.environ.get(TRANSFER_FOLDER_VARIABLE)
        if not folder:
            raise StatusError(
                StatusCode.FAILED_PRECONDITION, f"{TRANSFER_FOLDER_VARIABLE} is not set for the server"
            )
        with self._lock:
            if self._owner is None or self._owner.is_closed:
                self._owner = session
            owner = self._owner
        if owner is not session:
            # Files are named by handles, which start at 1 in each client.
            raise StatusError(
                StatusCode.FAILED_PRECONDITION,
                f"session {owner.number} uses the folder of {TRANSFER_FOLDER_VARIABLE}; each program needs "
                "its own",
            )
        with self._folders.open(folder) as number:
            # Clients write the handle as a signed number of 32 bits.
            name = int.from_bytes((handle & 0xFFFFFFFF).to_bytes(4, "big"), "big", signed=True)
            return open_file(number, f"lt_{name}", size)
