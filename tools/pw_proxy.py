"""`pw-proxy` runs unmodified JAX programs on devices of a server, or serves such programs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pathways.tools.common import command
from pathways.tools.common.errors import UserError
from pathways.tools.common.flags import FlagParser, cpu_devices, hosts, positive

_DESCRIPTION = """\
  pw-proxy -- python train.py --steps 10     start a server, run a program on it, exit with its exit code
  pw-proxy --listen unix:/run/me/jax         serve until SIGTERM; prints the environment of programs

The program is any that uses JAX, and is not changed: JAX itself has the client (JAX_PLATFORMS=proxy).
Devices, arrays and compiled code are in the server.

For tests of elastic training, SIGUSR1 loses the last island that is connected, SIGUSR2 returns the one
that was lost last. Arrays on an island are DATA_LOSS once it is lost, and new ones until it has returned.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    end = words.index("--") if "--" in words else len(words)
    program = words[end + 1 :]

    def work(options: argparse.Namespace) -> int:
        return _run(options, program)

    # Not in a child process: it gets the signals, and the program is its own child.
    serves = program or any(argument.startswith("--listen") for argument in words)
    code = command.run(make_parser(), work, words[:end] if serves or arguments is not None else None)
    if arguments is None:
        # Threads of XLA may still run, which it does not expect of a process that ends in other ways.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


_OF_HOSTS = (
    "devices_per_host",
    "joined",
    "launcher",
    "address",
    "bind",
    "ports",
    "start",
    "python",
    "secret_file",
)
"""Options of `pathways.connect` for workers, and whether islands are joined."""


def _run(options: argparse.Namespace, program: Sequence[str]) -> int:
    if not program and options.listen is None:
        raise UserError("expected -- and a program, or --listen; see pw-proxy --help")
    if program and options.listen is not None:
        raise UserError("--listen serves other programs; it takes none itself")
    if options.insecure and options.listen is None:
        raise UserError("--insecure is for --listen HOST:PORT")
    if options.with_cpu and options.listen is not None:
        raise UserError("--with-cpu is for pw-proxy -- PROGRAM")
    if options.cpu_devices is not None and options.platform != "cpu":
        raise UserError("--cpu-devices is for --platform cpu")

    of_hosts = {name: getattr(options, name) for name in _OF_HOSTS}
    options.has_hosts = options.hosts is not None or options.launcher == "slurm"
    flags = [name for name, value in of_hosts.items() if value not in (None, False)]
    if flags and not options.has_hosts:
        raise UserError(f"--{flags[0].replace('_', '-')} is for --hosts")
    from pathways.tools.drivers.fronts import proxy as driver

    return driver.run(options, program)


def _ports(text: str) -> tuple[int, int]:
    first, separator, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and bool(separator) == bool(last)):
        raise argparse.ArgumentTypeError(f"expected a first and a last port, as in 7000-7100, got '{text}'")
    return int(first), int(last or first)


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    parser = FlagParser(
        "pw-proxy",
        "pw-proxy [flags] -- PROGRAM [ARGUMENT ...] | pw-proxy --listen ADDRESS [flags]",
        _DESCRIPTION,
    )
    add = parser.add_argument
    add(
        "--listen",
        metavar="ADDRESS",
        help="serve at unix:PATH, a UNIX socket in a folder that only you may enter, which is made if its "
        "parent exists; or at HOST:PORT, with --insecure",
    )
    add(
        "--insecure",
        action="store_true",
        help="allow --listen HOST:PORT: any client that reaches it runs code as you",
    )
    add(
        "--platform",
        choices=("cpu", "cuda"),
        default="cpu",
        metavar="NAME",
        help="whose devices to serve: cpu or cuda; default: cpu",
    )
    add("--cpu-devices", type=cpu_devices, metavar="N", help="how many devices the CPU is; default: 1")
    add(
        "--hosts",
        type=hosts,
        metavar="N|NAME,...",
        help="how many workers to start, each a host with devices of its own, or the names of the machines "
        "that run one each; default: the devices of the server itself",
    )
    add(
        "--devices-per-host",
        type=cpu_devices,
        metavar="N",
        help="how many CPU devices a host is; default: 1",
    )
    add(
        "--islands",
        type=positive,
        metavar="N",
        help="into how many equal islands to divide the hosts, or the devices of the server; they are the "
        "slices of programs (slice_index); default: each host is one, and the devices of the server are one",
    )
    add(
        "--joined",
        action="store_true",
        help="join the islands, so that arrays and programs may be on several; they then restart together",
    )
    add(
        "--launcher",
        choices=("ray", "slurm", "join"),
        metavar="NAME",
        help="what starts the workers: ray; slurm, on the nodes of its allocation, where --hosts may be left "
        "out; or join, which waits for pw-worker --join on as many machines; default: this process",
    )
    add("--address", metavar="HOST:PORT", help="the address of the Ray cluster to join")
    add("--bind", metavar="ADDRESS", help="the IPv4 address to listen on for workers of other machines")
    add("--ports", type=_ports, metavar="FIRST-LAST", help="the ports to listen on; default: any")
    add(
        "--start",
        metavar="COMMAND",
        help="what starts a worker on a machine; default: 'ssh {host} {command}'",
    )
    add("--python", metavar="PATH", help="the Python of workers on other machines")
    add("--secret-file", metavar="FILE", help="the secret of machines that join")
    add(
        "--max-memory",
        metavar="SIZE",
        help="how much arrays and programs of all clients may have together, such as 8GiB; what would exceed "
        "it is an error RESOURCE_EXHAUSTED of the program; default: no limit",
    )
    add(
        "--files",
        metavar="DIR",
        action="append",
        default=[],
        help="folder below which programs may have the server write and read arrays; may be repeated",
    )
    add("--with-cpu", action="store_true", help="the program also gets the CPU of its own process")
    add("--verbose", action="store_true", help="log when sessions start and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
