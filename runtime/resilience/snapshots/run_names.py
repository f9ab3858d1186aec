"""Names of training runs and of their folders."""

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
_RESUMABLE = "kept-"

RUN_PATTERN = rf"\A(?:{_OWN_PATTERN}|{_RESUMABLE}{_TOKEN})\Z"
"""Pattern of names by controllers. No other process can guess the 128 bits of the token."""

_OF_PROCESS = re.compile(rf"\A{_OWN_PATTERN}\Z")
_OF_CLIENT = re.compile(rf"\Aclient-{_PROCESS}-([0-9]{{1,10}})-{_TOKEN}\Z")


def run_name(token: str) -> str:
    """Returns the name of a run of this process; `token` is 32 random hexadecimal digits."""
    return f"run-{this_process()}-{token}"


def kept_run_name(token: str) -> str:
    """Returns the name of a run that another process can resume after a kill of this one."""
    return f"{_RESUMABLE}{token}"


def is_kept(name: str) -> bool:
    """Returns whether another process can resume a run."""
    return name.startswith(_RESUMABLE)


def client_run_name(service: str, client: int, run: str) -> str:
    """Returns the name of the folder of a client's run; no client can name the folder of another.

    Args:
      service: `this_process` of the service, which the run does not outlive.
    """
    return f"client-{service}-{client}-{run[-32:]}"


def client_of(name: str, service: str) -> int | None:
    """Returns the number of the client with a folder; None if it is not of a client of the service."""
    match = _OF_CLIENT.fullmatch(name)
    return int(match[3]) if match is not None and f"{match[1]}-{match[2]}" == service else None


def is_over(name: str) -> bool:
    """Returns whether a run depends on a process of this machine that has exited."""
    match = _OF_PROCESS.fullmatch(name) or _OF_CLIENT.fullmatch(name)
    return match is not None and has_exited(f"{match[1]}-{match[2]}")


def has_exited(process: str) -> bool:
    """Returns whether a process of this machine has exited; see `this_process`."""
    machine, _, pid = process.partition("-")
    return machine == this_machine() and not Path("/proc", pid).exists()


def remove_client_runs(
    folder: str | os.PathLike[str], service: str, has_ended: Callable[[int], bool]
) -> None:
    """Removes the runs of disconnected clients that lost workers left.

    Args:
      service: see `client_run_name`.
      has_ended: a function that returns whether a client has disconnected.
    """

    def is_of_ended_client(name: str) -> bool:
        client = client_of(name, service)
        return client is not None and has_ended(client)

    remove_leftovers(folder, math.inf, lambda leftover: is_of_ended_client(leftover.cluster))
    # A worker may have been killed between the removal of the files and of the folder.
    for path in [*Path(folder).iterdir()]:
        if is_of_ended_client(path.name):
            with contextlib.suppress(OSError):
                path.rmdir()


def remove_all_client_runs(options: HostOptions) -> None:
    """Removes the runs of all clients of this process's service from workers on this machine."""
    folder = options.snapshot_folder or default_snapshot_folder()
    with contextlib.suppress(OSError):
        remove_client_runs(folder, this_process(), lambda client: True)
