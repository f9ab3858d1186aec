"""`pw-cluster` starts a cluster whose islands many clients share, shows its status, and ends it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from pathways.tools.common import command
from pathways.tools.common.errors import UserError
from pathways.tools.common.flags import FlagParser, cpu_devices, hosts, positive

_DESCRIPTION = """\
  pw-cluster up cluster.toml [--name lab]      start the cluster of a file; returns when all islands are ready
  pw-cluster up cluster.toml --foreground      the same, and stay, for systemd and Kubernetes: SIGTERM ends it
  pw-cluster add lab --hosts 2 [--devices-per-host 4] [--cores N] [--device-memory SIZE] [--pool SIZE]
                                               start one more island; prints its name when it runs
  pw-cluster list                              the clusters that are running
  pw-cluster status lab [--json] [--watch]     its islands, hosts and clients
  pw-cluster accounts lab [--by client,island] [--json]
                                               what each client had of the islands, also of earlier clients
  pw-cluster run lab [--client ann] [--islands island0,island1] [--files DIR] [--with-cpu] -- python a.py
                                               run a JAX program on its devices; exit with its exit code
  pw-cluster token lab CLIENT [-o FILE] [--revoke]
                                               print a token that is bound to the name of a client
  pw-cluster set lab CLIENT weight=4 priority=1 memory="8 GiB"
                                               change the rules of a client until the cluster ends
  pw-cluster suspend lab CLIENT                dispatch no step of a client; its arrays stay
  pw-cluster resume lab CLIENT                 dispatch steps of a suspended client again
  pw-cluster drain lab island0 [--grace 60] [--force]
                                               take an island out: its clients move to others while they run
  pw-cluster undrain lab island0               start its workers again
  pw-cluster end lab CLIENT                    end a client, and free all that it owns
  pw-cluster down lab                          end it, with its workers and clients
  pw-cluster logs lab [--follow]               what its service and its workers have written

Programs use it by pathways.connect("lab", client="ann"). A cluster is named after its file unless --name
is given. In place of a name, all but up and logs take an address and a port, as in 10.0.0.5:7070, with
--token. With the token of a client, its holder may attach under its name, see the status and end itself;
all else needs the token of the cluster. Folders of clusters are in $PW_CLUSTERS, by default
~/.local/state/pathways/clusters. pw-cluster COMMAND --help lists the flags of a command.
"""

_MAX_GRACE = 1e6
"""Limit of the seconds of a drain."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    end = words.index("--") if "--" in words else len(words)
    program = words[end + 1 :]
    # The started process itself stays, and no child of it.
    stays = arguments is not None or "--foreground" in words or words[:1] == ["run"]
    return command.run(make_parser(), lambda options: _run(options, program), words[:end] if stays else None)


def _run(options: argparse.Namespace, program: Sequence[str]) -> int:
    if options.command is None:
        raise UserError(f"expected a command: {', '.join(make_parser().commands)}; see pw-cluster --help")

    if options.command == "run":
        if not program:
            raise UserError("expected -- and a program; see pw-cluster run --help")

        # Copied before the import of JAX, which changes it.
        environment = dict(os.environ)
        from pathways.tools.drivers.fronts import cluster_run

        return cluster_run.run(options, program, environment)
    if program:
        raise UserError(f"pw-cluster {options.command} takes no program")

    from pathways.tools.drivers import cluster as driver

    return driver.run(options)


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    commands = "up|add|list|status|accounts|run|token|set|suspend|resume|drain|undrain|end|down|logs"
    usage = f"pw-cluster {commands} [CLUSTER] [flags]"
    parser = FlagParser("pw-cluster", usage, _DESCRIPTION, library=None)
    up = parser.add_command("up", "FILE [flags]", "Starts the cluster of a file.")
    add = parser.add_command(
        "add", "CLUSTER --hosts N|NAME,... [flags]", "Adds an island to a running cluster."
    )
    parser.add_command("list", "", "Lists the clusters that are up.")
    status = parser.add_command("status", "CLUSTER [flags]", "Shows islands, hosts and clients.")
    accounts = parser.add_command(
        "accounts", "CLUSTER [flags]", "Shows what each client had of the islands, also of earlier clients."
    )
    run = parser.add_command(
        "run",
        "CLUSTER [flags] -- PROGRAM [ARGUMENT ...]",
        "Runs an unmodified JAX program on the devices of a cluster.",
    )
    token = parser.add_command(
        "token", "CLUSTER CLIENT [flags]", "Prints a token with which its holder is this client only."
    )
    change = parser.add_command(
        "set",
        "CLUSTER CLIENT RULE=VALUE ... [flags]",
        "Changes rules of a client until the cluster ends.",
    )
    suspend = parser.add_command("suspend", "CLUSTER CLIENT [flags]", "Dispatches no step of a client.")
    resume = parser.add_command(
        "resume", "CLUSTER CLIENT [flags]", "Dispatches steps of a suspended client again."
    )
    drain = parser.add_command(
        "drain",
        "CLUSTER ISLAND [flags]",
        "Takes an island out: its clients move to others while they run, and its workers exit.",
    )
    undrain = parser.add_command(
        "undrain", "CLUSTER ISLAND [flags]", "Starts the workers of a drained island again."
    )
    end = parser.add_command("end", "CLUSTER CLIENT [flags]", "Ends a client, and frees all that it owns.")
    down = parser.add_command("down", "CLUSTER [flags]", "Ends a cluster, with its workers and clients.")
    logs = parser.add_command(
        "logs", "CLUSTER [flags]", "Prints what the service and its workers have written."
    )
    up.add_argument("target", metavar="FILE", help="a configuration file, in TOML")
    logs.add_argument("target", metavar="CLUSTER", help="the name of a cluster")
    for parser_of in (add, status, accounts, run, token, change, suspend, resume, drain, undrain, end, down):
        parser_of.add_argument("target", metavar="CLUSTER", help="its name, or an address and a port")
        parser_of.add_argument("--token", metavar="FILE", help="a copy of a token of the cluster")
    up.add_argument("--name", metavar="NAME", help="the name of the cluster; default: that of the file")
    up.add_argument("--foreground", action="store_true", help="stay, and log to standard error")
    add.add_argument(
        "--hosts",
        type=hosts,
        required=True,
        metavar="N|NAME,...",
        help="how many hosts the island has, or the names of the machines that run one each",
    )
    add.add_argument(
        "--devices-per-host",
        type=cpu_devices,
        default=1,
        metavar="N",
        help="how many CPU devices a host is; default: 1",
    )
    add.add_argument(
        "--cores", type=positive, metavar="N", help="how many cores each host has for itself; default: shared"
    )
    add.add_argument(
        "--device-memory",
        metavar="SIZE",
        help="the memory of each device that clients and their steps may use; default: as island0",
    )
    add.add_argument(
        "--pool", metavar="SIZE", help="the part of it for temporaries; default: as island0, or a quarter"
    )
    for parser_of in (status, accounts):
        parser_of.add_argument("--json", action="store_true", help="print JSON")
    accounts.add_argument(
        "--by",
        type=lambda text: text.split(","),
        default=["client", "program", "island"],
        metavar="KEY,...",
        help="sum over all but these keys: client, program, island; default: all three",
    )
    status.add_argument("--watch", action="store_true", help="refresh every second")
    run.add_argument(
        "--client",
        metavar="NAME",
        help="its name at the service; default: the token's, or user and process id",
    )
    run.add_argument(
        "--islands",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="the islands whose devices it sees, as in island0,island1; default: all",
    )
    run.add_argument(
        "--files",
        metavar="DIR",
        action="append",
        default=[],
        help="folder below which it may have hosts write and read arrays; may be repeated",
    )
    run.add_argument("--with-cpu", action="store_true", help="it also gets the CPU of its own process")
    for parser_of in (token, change, suspend, resume, end):
        parser_of.add_argument("client", metavar="CLIENT", help="the name of a client")
    change.add_argument(
        "rules",
        nargs="+",
        metavar="RULE=VALUE",
        help="weight=4, priority=1 or memory='8 GiB', as in the file of a cluster",
    )
    for parser_of in (drain, undrain):
        parser_of.add_argument("island", metavar="ISLAND", help="the name of an island, as in island0")
    drain.add_argument(
        "--grace",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="the time after which it leaves, and arrays on it are lost; default: 60",
    )
    drain.add_argument("--force", action="store_true", help="also if slices on it fit nowhere else")
    token.add_argument("-o", dest="output", default="-", metavar="FILE", help="default: standard output")
    token.add_argument("--revoke", action="store_true", help="make all its tokens so far invalid before")
    logs.add_argument("--follow", action="store_true", help="keep following until the cluster ends")
    return parser


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) <= _MAX_GRACE:
            return seconds
    raise argparse.ArgumentTypeError(f"{text}: expected 0 to {_MAX_GRACE:g} seconds")


if __name__ == "__main__":
    sys.exit(main())
