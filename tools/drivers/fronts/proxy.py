"""Server of JAX programs for `pw-proxy`, and the program that it may run."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pathways.dialect.errors import PathwaysError
from pathways.passes.analysis.quantities import TimesError, read_bytes
from pathways.tools.common.errors import UserError

if TYPE_CHECKING:
    from pathways.runtime.proxy.hosted.hosts_backend import HostsBackend
    from pathways.runtime.proxy.serving.server import ProxyServer


_LOG = logging.getLogger("pathways.proxy")


def run(options: argparse.Namespace, program: Sequence[str]) -> int:
    """Serves until a signal, or runs a program; returns the exit code."""
    logging.basicConfig(
        format="pw-proxy: %(message)s", level=logging.INFO if options.verbose else logging.WARNING
    )
    # Copied before `_serve` sets JAX_PLATFORMS for this process.
    environment = dict(os.environ)
    with _serve(options) as server, _islands_by_signal(server):
        if options.listen is not None:
            return _wait(server)
        return run_client(server, program, environment, with_cpu=options.with_cpu)


def run_client(
    server: ProxyServer,
    program: Sequence[str],
    environment: Mapping[str, str],
    *,
    with_cpu: bool = False,
    on_start: Callable[[int], None] = lambda process: None,
) -> int:
    """Runs a program that uses a server, and returns its exit code.

    Args:
      environment: the environment of the program, without the variables of the server.
      with_cpu: whether the program also gets the CPU of its own process.
      on_start: called with the process id of the program.
    """
    of_client = server.environment
    if with_cpu:
        of_client["JAX_PLATFORMS"] += ",cpu"
    with _plugin(environment) as (of_plugin, was_loaded):
        code = _run_program(program, {**environment, **of_client, **of_plugin}, on_start)
        if server.was_used and not was_loaded():
            _LOG.warning(_NO_PLUGIN)
    if not server.was_used:
        _LOG.warning(_NEVER_CONNECTED)
    return code


_NEVER_CONNECTED = (
    "the program never connected: JAX does so from release 0.12 on where JAX_PLATFORMS is proxy, as pw-proxy "
    "sets it, and before that only after pathwaysutils.initialize()"
)

_NO_PLUGIN = (
    "the program ignored PYTHONPATH, as Python does with -I or -E: NumPy arrays that it changed after a call "
    "may have been read later; have it call pathways.proxy.copy_numpy_at_call()"
)


@contextlib.contextmanager
def _plugin(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], Callable[[], bool]]]:
    """Yields the variables with which the JAX of a program finds `client_plugin`, and whether it has."""
    from pathways.runtime.proxy.serving import client_plugin

    with tempfile.TemporaryDirectory(prefix="pathways-") as folder:
        # Last, and one module of a namespace package, so that it hides no module of the program.
        paths = [path for path in (environment.get("PYTHONPATH"), folder) if path]
        marker = client_plugin.install(Path(folder))
        yield {"PYTHONPATH": os.pathsep.join(paths)}, marker.exists


def _endpoint(listen: str, insecure: bool) -> Path | tuple[str, int]:
    """Returns the path or the address of `--listen`."""
    kind, _, path = listen.partition(":")
    if kind == "unix" and path:
        if insecure:
            raise UserError("--insecure is for --listen HOST:PORT; a UNIX socket is secure")
        return Path(path).absolute()
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) >= 1 << 16:
        raise UserError(f"--listen must be unix:PATH or HOST:PORT, got '{listen}'")
    if not insecure:
        raise UserError(
            f"--listen {listen} needs --insecure: any client that reaches it runs code as you, because the "
            "client in JAX cannot authenticate itself; prefer unix:PATH"
        )
    return host, int(port)


def _serve(options: argparse.Namespace) -> ProxyServer:
    """Starts the server. Imports JAX here, so that errors in options are immediate."""
    endpoint = None if options.listen is None else _endpoint(options.listen, options.insecure)
    try:
        max_memory = None if options.max_memory is None else read_bytes(options.max_memory, "--max-memory")
    except TimesError as error:
        raise UserError(str(error)) from None
    # The variable may be meant for a program, and is `proxy` then.
    os.environ["JAX_PLATFORMS"] = options.platform
    # So may this one: the program writes its trace itself.
    os.environ.pop("PW_TRACE", None)
    try:
        import jax

        from pathways.compiler.mpmd.from_ifrt import schedule_ifrt
        from pathways.runtime.proxy.serving.server import serve
        from pathways.runtime.traces.recorder import Recorder
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] in ("google", "h2"):
            raise UserError("pw-proxy needs more packages: pip install 'pathways-mlir[proxy]'") from None
        raise
    jax.config.update("jax_platforms", options.platform)
    if options.cpu_devices is not None:
        jax.config.update("jax_num_cpu_devices", options.cpu_devices)
    try:
        jax.devices()
    # Without a plugin for the platform, JAX raises an AssertionError.
    except (RuntimeError, AssertionError) as error:
        reason = f": {str(error).splitlines()[0]}" if str(error) else ""
        if options.platform == "cpu":
            raise UserError(f"JAX has no CPU devices{reason}") from None
        raise UserError(
            f"--platform {options.platform}: JAX has no GPU here{reason}; nvidia-smi lists GPUs, and JAX "
            "needs its plugin for them: pip install 'jax[cuda13]'"
        ) from None
    try:
        backend = _hosts_backend(options) if options.has_hosts else None
        return serve(
            None if isinstance(endpoint, tuple) else endpoint,
            islands=options.islands or 1,
            max_memory=max_memory,
            files=options.files,
            insecure_address=endpoint if isinstance(endpoint, tuple) else None,
            schedule_ifrt=schedule_ifrt,
            make_recorder=Recorder,
            backend=backend,
        )
    except (PathwaysError, ValueError, RuntimeError, OSError) as error:
        raise UserError(str(error).partition("\n")[0]) from None


def _hosts_backend(options: argparse.Namespace) -> HostsBackend:
    """Starts the workers of `--hosts`, and returns their devices."""
    from pathways.runtime.clusters.connect import start_session
    from pathways.runtime.hosts.launch.launcher_choice import settings_of
    from pathways.runtime.hosts.launch.launcher_records import record_of
    from pathways.runtime.hosts.launch.settings import Island
    from pathways.runtime.proxy.hosted.hosts_backend import HostsBackend

    hosts, islands = options.hosts, None
    are_named = hosts is not None and not isinstance(hosts, int)
    if are_named and options.launcher is None and options.bind is None:
        raise UserError(
            f"--hosts {_shown(hosts)} needs --bind, the address of this machine that workers on others reach"
        )
    if hosts is not None:
        machines: list[str | None] = [None] * hosts if isinstance(hosts, int) else hosts
        count = len(machines) if options.islands is None else options.islands
        if len(machines) % count:
            raise UserError(f"--hosts {_shown(hosts)} cannot form {count} equal islands")
        # Joined islands are one island with several slices.
        slices = count if options.joined else 1
        size = len(machines) * slices // count
        islands = [
            Island(
                size if isinstance(hosts, int) else hosts[first : first + size],
                options.devices_per_host or 1,
                slices=slices,
            )
            for first in range(0, len(machines), size)
        ]
    launcher = record_of(
        options.launcher,
        are_named,
        {
            name: getattr(options, name)
            for name in ("bind", "ports", "address", "start", "python", "secret_file")
        },
    )
    settings = settings_of(
        launcher,
        islands=islands,
        devices_per_host=options.devices_per_host if islands is None else None,
        platform=options.platform,
    )
    return HostsBackend(start_session(settings))


def _shown(hosts: int | Sequence[str]) -> str:
    return str(hosts) if isinstance(hosts, int) else ",".join(hosts)


@contextlib.contextmanager
def _islands_by_signal(server: ProxyServer) -> Iterator[None]:
    """Removes the last island on each SIGUSR1, and restores the one that was removed last on each SIGUSR2.

    Islands of hosts are lost and return by themselves.
    """
    if server.served.backend.devices[0].task is not None:
        yield
        return
    from pathways.runtime.resources.threads import start_thread

    # The handler of a signal may interrupt another, so that neither may wait for a lock.
    signals: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def change_islands() -> None:
        while (number := signals.get()) is not None:
            states = server.served.island_states
            connected = set(range(len(states.names))) - states.lost
            if number == signal.SIGUSR1 and connected:
                server.lose_island(max(connected))
                _LOG.warning("%s lost", states.names[max(connected)])
            elif number == signal.SIGUSR2 and states.lost:
                index = max(states.lost, key=states.lost_at.__getitem__)
                server.return_island(index)
                _LOG.warning("%s returned", states.names[index])
            else:
                _LOG.warning("no island is %s", "lost" if connected else "connected")

    start_thread(change_islands, "proxy islands")
    previous = {
        number: signal.signal(number, lambda number, _: signals.put(number))
        for number in (signal.SIGUSR1, signal.SIGUSR2)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signals.put(None)


def _wait(server: ProxyServer) -> int:
    """Serves until SIGTERM or Ctrl-C."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    for name, value in server.environment.items():
        print(f"export {name}={shlex.quote(value)}")
    sys.stdout.flush()
    ended.wait()
    return 0


def _run_program(
    program: Sequence[str], environment: Mapping[str, str], on_start: Callable[[int], None]
) -> int:
    """Runs a program; returns its exit code, or 128 and the number of the signal that ended it."""
    environment = {
        # Otherwise equinox would check with callbacks, which JAX's client rejects.
        "EQX_ON_ERROR": "nan",
        **environment,
        # Otherwise JAX's client would log a stack trace at the end of each program.
        "TF_CPP_MIN_LOG_LEVEL": environment.get("TF_CPP_MIN_LOG_LEVEL") or "2",
    }
    executable = shutil.which(program[0])
    if executable is None:
        raise UserError(f"program not found: '{program[0]}'")
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _: object) -> None:
        if child is not None:
            child.send_signal(number)

    # A terminal sends Ctrl-C to the program, too, which decides about it.
    previous = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}
    previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, forward)
    try:
        child = subprocess.Popen([executable, *program[1:]], env=environment)
        on_start(child.pid)
        code = child.wait()
    except OSError as error:
        raise UserError(f"program '{program[0]}': {error.strerror}") from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
