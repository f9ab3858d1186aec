"""Cable between two processes that a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading


class Cable:
    """Forwarder of a port of its own to an address, until it is cut."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server = socket.create_server(("127.0.0.1", 0))
        self._target = host, int(port)
        self.address = "127.0.0.1:" + str(self._server.getsockname()[1])
        self.cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Closes the connections and the port."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._server.accept()
                threading.Thread(target=self._join, args=(sock,), daemon=True).start()

    def _join(self, sock: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target)
        except OSError:
            sock.close()
            return
        for source, target in ((sock, far), (far, sock)):
            threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), target:
            while data := source.recv(4096):
                if not self.cut:
                    target.sendall(data)
            # Another thread may read from it, which closing alone does not interrupt.
            target.shutdown(socket.SHUT_RDWR)
