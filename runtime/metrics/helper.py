"""Helper process of `feed.MetricsFeed`, which reads snapshots from standard input and serves the last one."""

from __future__ import annotations

import signal
import socket
import sys

import msgspec

from pathways.runtime.metrics.server import Board, MetricsServer
from pathways.runtime.metrics.snapshots import Snapshot
from pathways.runtime.resources.threads import start_thread


def main(arguments: list[str]) -> int:
    """Serves until standard input ends; returns the exit code.

    Args:
      arguments: the number of the descriptor of a listening socket.
    """
    # The terminal's Ctrl-C is for the service, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    board = Board()
    server = MetricsServer(socket.socket(fileno=int(arguments[0])), board)
    start_thread(server.serve_forever, "serve")
    decode = msgspec.json.Decoder(Snapshot).decode
    for line in sys.stdin.buffer:
        board.add(decode(line))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
