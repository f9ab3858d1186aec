"""Names of training runs, which are those of their folders."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

from pathways.runtime.hosts.launch.options import HostOptions
from pathways.runtime.resilience.snapshots.host_snapshots import default_snapshot_folder
from pathways.runtime.resilience.snapshots.leftovers import remove_leftovers
from pathways.runtime.resources.process_identity import this_machine, this_process

_PROCESS = r"([0-9a-f]{32})-([0-9]{1,10})"
_TOKEN = r"([0-9a-f]{32})"

_OWN_PATTERN = rf"run-{_PROCESS}-{_TOKEN}"
_KEPT = "kept-"

RUN_PATTERN = rf"\A(?:{_OWN_PATTERN}|{_KEPT}{_TOKEN})\Z"
"""Names as controllers give them. No other process can guess the 128 bits of the token."""

_OWN = re.compile(rf"\A{_OWN_PATTERN}\Z")
_OF_CLIENT = re.compile(rf"\Aclient-{_PROCESS}-([0-9]{{1,10}})-{_TOKEN}\Z")


def run_name(token: str) -> str:
    """Returns the name of a run of this process; `token` is 32 random hexadecimal digits."""
    return f"run-{this_process()}-{token}"


def kept_run_name(token: str) -> str:
    """Returns the name of a run with which another process goes on when this one was killed."""
    return f"{_KEPT}{token}"


def is_kept(name: str) -> bool:
    """Returns whether another process may go on with a run."""
    return name.startswith(_KEPT)


def client_run_name(service: str, client: int, run: str) -> str:
    """Returns the name of the folder of a client's run: a client cannot name that of another one.

    Args:
      service: `this_process` of the service, whose process decides how long the run may last.
    """
    return f"client-{service}-{client}-{run[-32:]}"


def client_of(name: str, service: str) -> int | None:
    """Returns the number of the client whose run has a folder; None if it is of no client of the service."""
    match = _OF_CLIENT.fullmatch(name)
    return int(match[3]) if match is not None and f"{match[1]}-{match[2]}" == service else None


def is_over(name: str) -> bool:
    """Returns whether the process that a run depends on was one of this machine, and has exited."""
    match = _OWN.fullmatch(name) or _OF_CLIENT.fullmatch(name)
    return match is not None and has_exited(f"{match[1]}-{match[2]}")


def has_exited(process: str) -> bool:
    """Returns whether a process was one of this machine, and has exited; see `this_process`."""
    machine, _, pid = process.partition("-")
    return machine == this_machine() and not Path("/proc", pid).exists()


def remove_client_runs(
    folder: str | os.PathLike[str], service: str, has_ended: Callable[[int], bool]
) -> None:
    """Removes what lost workers have left of the runs of clients.

    Args:
      service: see `client_run_name`.
      has_ended: returns whether the client of a number has disconnected.
    """

    def is_of_ended_client(name: str) -> bool:
        client = client_of(name, service)
        return client is not None and has_ended(client)

    remove_leftovers(folder, math.inf, lambda one: is_of_ended_client(one.cluster))
    # A worker that was killed while it removed the last files may have left an empty folder.
    for path in [*Path(folder).iterdir()]:
        if is_of_ended_client(path.name):
            with contextlib.suppress(OSError):
                path.rmdir()


def remove_all_client_runs(options: HostOptions) -> None:
    """Removes the runs of all clients of a service of this process, where workers were on this machine."""
    folder = options.snapshot_folder or default_snapshot_folder()
    with contextlib.suppress(OSError):
        remove_client_runs(folder, this_process(), lambda client: True)
