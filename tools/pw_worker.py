"""`pw-worker` runs the workers of a controller on this machine, and shows or drains them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pathways.tools.common import command
from pathways.tools.common.errors import UserError
from pathways.tools.common.flags import FlagParser, count, seconds

_DESCRIPTION = """\
  pw-worker --join 10.0.0.5:7000 --secret-file F    run a worker of a controller, and its replacements
  pw-worker --ready [--hosts N]                     exit code 1 if fewer workers are ready on this machine
  pw-worker --drain SECONDS                         send SIGTERM to all of them, wait for their exits

The controller calls pathways.connect(pathways.Join(secret_file="F", bind="10.0.0.5", ports=(7000, 7099)),
hosts=N): machines join at the first port. It may start later. When the worker is lost, this command also runs
its replacement. SIGTERM is forwarded, so that the island leaves. It exits with the controller, or when the
controller cannot be reached for --wait seconds.

Workers with PW_READY_DIR in their environment have a file in that folder while they are ready: --ready and
--drain, a probe and a hook of Kubernetes, read it.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    if arguments is None and any(word.startswith("--join") for word in sys.argv[1:]):
        # Not in a child process: it forwards signals to its worker, which exits with it.
        arguments = sys.argv[1:]
    return command.run(make_parser(), _run, arguments)


def _run(options: argparse.Namespace) -> int:
    if (options.join is not None) + options.ready + (options.drain is not None) != 1:
        raise UserError("expected --join, --ready or --drain; see pw-worker --help")
    if (options.join is None) != (options.secret_file is None):
        raise UserError("--join and --secret-file go together")

    if options.join is not None:
        return _join(options)

    from pathways.runtime.hosts.launch import ready

    folder = options.folder or os.environ.get(ready.FOLDER)
    if not folder:
        raise UserError(
            f"expected --folder, or {ready.FOLDER} in the environment: the folder of ready workers"
        )
    if options.ready:
        workers = ready.ready_workers(Path(folder))
        print(f"{len(workers)} ready: {', '.join(workers) or 'none'}")
        return 0 if len(workers) >= options.hosts else 1
    if left := ready.drain(Path(folder), options.drain):
        raise UserError(f"not exited after {options.drain:.0f} seconds: {', '.join(left)}")
    return 0


def _join(options: argparse.Namespace) -> int:
    # Slow, and `--ready` runs often.
    from pathways.runtime.hosts.launch.agent import Agent
    from pathways.runtime.hosts.launch.join_launcher import secret_of
    from pathways.runtime.hosts.protocol.join_messages import ANY_HOST

    try:
        secret = secret_of(options.secret_file, "--secret-file")
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from None
    agent = Agent(options.join, secret, ANY_HOST if options.host is None else options.host, options.wait)
    signal.signal(signal.SIGTERM, agent.leave)
    if (failure := agent.serve()) is not None:
        raise UserError(failure)
    return 0


def _address(text: str) -> tuple[str, int]:
    name, _, port = text.rpartition(":")
    if not name or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an address and a port, as in 10.0.0.5:7000")
    return name, int(port)


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    usage = "pw-worker --join ADDRESS --secret-file FILE [flags] | --ready | --drain SECONDS"
    parser = FlagParser("pw-worker", usage, _DESCRIPTION)
    add = parser.add_argument
    add("--join", type=_address, metavar="ADDRESS", help="address and port of the controller")
    add("--secret-file", metavar="FILE", help="secret file of the controller, or a copy")
    add("--host", type=count, metavar="N", help="number of the host to join as; default: any")
    add("--wait", type=seconds, default=300.0, metavar="SECONDS", help="time to retry; default: 300")
    add("--ready", action="store_true", help="print which workers of this machine are ready")
    add("--hosts", type=count, default=1, metavar="N", help="with --ready: how many must be; default: 1")
    add("--drain", type=seconds, metavar="SECONDS", help="send SIGTERM to all, wait so long for their exits")
    add("--folder", metavar="DIR", help="folder of ready workers; default: $PW_READY_DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
