"""`pw-cluster` brings a cluster up whose islands many clients share, shows what it is at, and ends it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pathways.tools.common import command
from pathways.tools.common.errors import UserError
from pathways.tools.common.flags import FlagParser, one_of

_DESCRIPTION = """\
  pw-cluster up cluster.toml [--name lab]      start the cluster of a file; returns when all islands are ready
  pw-cluster up cluster.toml --foreground      the same, and stay, for systemd and Kubernetes: SIGTERM ends it
  pw-cluster list                              which clusters are up
  pw-cluster status lab [--json] [--watch]     its islands, hosts and clients
  pw-cluster end lab CLIENT                    end a client, and free all that it owns
  pw-cluster down lab                          end it, with its workers and clients
  pw-cluster logs lab [--follow]               what its service and its workers have written

Programs use it by pathways.connect(attach="lab", client="ann"). The name of a cluster is that of the file
unless it is given. In place of a name, status, end and down take an address and a port, as in 10.0.0.5:7070,
with --token. Folders of clusters are in $PW_CLUSTERS, by default ~/.local/state/pathways/clusters.
"""

_COMMANDS = ("up", "list", "status", "end", "down", "logs")

_FLAGS = {
    "name": ("up",),
    "foreground": ("up",),
    "json": ("status",),
    "watch": ("status",),
    "token": ("status", "end", "down"),
    "follow": ("logs",),
}
"""The commands that each flag is for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    if arguments is None and "--foreground" in sys.argv[1:]:
        # What stays is the process that was started, and no child of it.
        arguments = sys.argv[1:]
    return command.run(make_parser(), _run, arguments)


def _run(options: argparse.Namespace) -> int:
    if options.command is None:
        raise UserError(f"expected a command: {', '.join(_COMMANDS)}; see pw-cluster --help")
    for flag, commands in _FLAGS.items():
        if getattr(options, flag) and options.command not in commands:
            raise UserError(f"--{flag} is for pw-cluster {' and '.join(commands)}")
    expected = {"up": ["a file"], "list": [], "end": ["a cluster", "a client"]}.get(
        options.command, ["a cluster"]
    )
    words = [word for word in (options.target, options.client) if word is not None]
    if len(words) < len(expected):
        raise UserError(f"pw-cluster {options.command}: expected {' and '.join(expected)}")
    if len(words) > len(expected):
        raise UserError(f"unexpected argument '{words[len(expected)]}'")

    from pathways.tools.drivers import cluster as driver

    return driver.run(options)


def make_parser() -> FlagParser:
    """The flags of the tool."""
    parser = FlagParser(
        "pw-cluster",
        f"pw-cluster {'|'.join(_COMMANDS)} [CLUSTER] [flags]",
        _DESCRIPTION,
        library=None,
    )
    add = parser.add_argument
    add("command", nargs="?", type=one_of(_COMMANDS), choices=_COMMANDS, metavar="COMMAND", help="see above")
    add("target", nargs="?", metavar="FILE", help="up: a configuration file; otherwise the name of a cluster")
    add("client", nargs="?", metavar="CLIENT", help="end: the name of a client")
    add("--name", metavar="NAME", help="up: the name of the cluster; default: that of the file")
    add("--foreground", action="store_true", help="up: stay, and log to standard error")
    add("--json", action="store_true", help="status: print JSON")
    add("--watch", action="store_true", help="status: refresh every second")
    add("--follow", action="store_true", help="logs: keep following until the cluster ends")
    add("--token", metavar="FILE", help="a copy of the token of a cluster that is elsewhere")
    return parser


if __name__ == "__main__":
    sys.exit(main())
