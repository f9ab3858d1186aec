"""Names of training runs, which are those of their folders."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

from pathways.runtime.snapshots.leftovers import remove_leftovers

_PROCESS = r"([0-9a-f]{32})-([0-9]{1,10})"
_TOKEN = r"([0-9a-f]{32})"

_OWN_PATTERN = rf"run-{_PROCESS}-{_TOKEN}"
_KEPT = "kept-"

RUN_PATTERN = rf"\A(?:{_OWN_PATTERN}|{_KEPT}{_TOKEN})\Z"
"""Names as controllers give them. No other process can guess the 128 bits of the token."""

_OWN = re.compile(rf"\A{_OWN_PATTERN}\Z")
_OF_CLIENT = re.compile(rf"\Aclient-{_PROCESS}-([0-9]{{1,10}})-{_TOKEN}\Z")


def this_machine() -> str:
    """Returns a name of this machine, which changes when it restarts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


def this_process() -> str:
    """Returns a name of this process, which none on another machine has."""
    return f"{this_machine()}-{os.getpid()}"


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
