"""Machines on a network that can be slow, lossy and cut: network namespaces of this one.

    with Lab(machines=2) as lab:
        lab.delay(20e-3)
        lab.run(0, [sys.executable, "program.py"])
        lab.cut(0, 1)
        lab.heal()

It needs root and Linux, as `unshare -n true` does, and `ip` (Debian: iproute2).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import switch

Pairs = Iterable[tuple[int, int]]


class Lab:
    """Machines of one network. They exist while it is entered: on exit, or when this process ends, they are
    removed with all processes on them.

    Args:
      machines: number of machines; machine k has the address `lab.address(k)` and the name `machinek`.
      shared: folders below /tmp that all of them see. Each has its own /tmp, /dev/shm and /etc/hosts.

    Attributes:
      start: a command that starts a worker on a machine, for `pathways.Ssh(start=)` in the lab.
    """

    start = f"{switch.ENTER} {{host}} {{command}}"

    def __init__(self, machines: int, shared: Sequence[str | os.PathLike[str]] = ()) -> None:
        self.machines = machines
        self._shared = [*map(os.fspath, shared), *_own_folders_in_tmp()]
        self._processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Lab:
        if shutil.which("ip") is None:
            raise RuntimeError("a lab needs the command ip (Debian: iproute2)")
        inside = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._switch = subprocess.Popen(
            [*inside, sys.executable, "-I", switch.__file__, str(self.machines), *self._shared],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._await_reply()
        (self._init,) = _children(self._switch.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._switch.stdin is not None
        assert self._switch.stdout is not None
        self._switch.stdin.close()
        self._switch.wait(timeout=20)
        self._switch.stdout.close()
        for process in self._processes:
            process.wait(timeout=20)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def address(self, machine: int) -> str:
        """Returns the address of a machine."""
        return switch.ADDRESS.format(machine + 1)

    def popen(self, machine: int, command: Sequence[str], **how: Any) -> subprocess.Popen[Any]:
        """Starts a command on a machine with the arguments `how` of `subprocess.Popen`."""
        enter = ["nsenter", "-t", str(self._init), "-p", "-m", "-n", "--", str(switch.ENTER)]
        process = subprocess.Popen([*enter, self.address(machine), *command], **how)
        self._processes.append(process)
        return process

    def run(
        self, machine: int, command: Sequence[str], timeout: float = 120, **how: Any
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on a machine until it ends; returns it with its output."""
        process = self.popen(
            machine, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how
        )
        try:
            out, error = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill(process)
            out, error = process.communicate(timeout=20)
            raise AssertionError(
                f"{command} has not ended after {timeout} s; it wrote\n{out}\n{error}"
            ) from None
        return subprocess.CompletedProcess(list(command), process.returncode, out, error)

    def kill(self, process: subprocess.Popen[Any], number: int = signal.SIGKILL) -> None:
        """Sends a signal to a process that `popen` has started."""
        for pid in _children(process.pid):
            os.kill(pid, number)

    def delay(self, seconds: float, *pairs: tuple[int, int]) -> None:
        """Sets the one-way delay of frames; on all links, or on those of some pairs, in both directions."""
        self.set(pairs, delay=seconds)

    def loss(self, fraction: float, *pairs: tuple[int, int]) -> None:
        """Sets the fraction of frames that are lost."""
        self.set(pairs, loss=fraction)

    def rate(self, bits_per_second: float | None, *pairs: tuple[int, int]) -> None:
        """Limits the rate of each link; None for no limit."""
        self.set(pairs, rate=bits_per_second)

    def cut(self, *pairs: tuple[int, int]) -> None:
        """Cuts the links of some pairs, in both directions; without pairs all."""
        self.set(pairs, is_cut=True)

    def drop(self, source: int, target: int) -> None:
        """Cuts one direction."""
        self._send([(source, target)], {"is_cut": True})

    def isolate(self, *machines: int) -> None:
        """Cuts some machines off from all others, but not from each other."""
        rest = [n for n in range(self.machines) if n not in machines]
        self.cut(*itertools.product(machines, rest))

    def heal(self) -> None:
        """Undoes all cuts."""
        self.set((), is_cut=False)

    def set(self, pairs: Pairs, **values: Any) -> None:
        """Sets fields of `switch.Link`, in both directions of some pairs; without pairs everywhere."""
        both = [way for a, b in pairs for way in ((a, b), (b, a))]
        self._send(both or [*itertools.permutations(range(self.machines), 2)], values)

    def _send(self, pairs: Pairs, values: dict[str, Any]) -> None:
        assert self._switch.stdin is not None
        self._switch.stdin.write(json.dumps({"pairs": [*pairs], **values}) + "\n")
        self._await_reply()

    def _await_reply(self) -> None:
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != "ok\n":
            raise RuntimeError("the lab has ended; see standard error")


def _own_folders_in_tmp() -> list[str]:
    """Returns the folders of the checkout and of Python that are in /tmp, which machines do not see."""
    folders = {Path(__file__).parents[2], Path(sys.prefix), Path(sys.base_prefix)}
    in_tmp = [folder for folder in folders if folder.is_relative_to("/tmp")]
    return [str(one) for one in in_tmp if not any(one.is_relative_to(o) and one != o for o in in_tmp)]


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(is_true: Any, seconds: float) -> None:
    """Waits for a condition that another process brings about.

    Raises:
      AssertionError: it is not true after this many seconds.
    """
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until, f"not true after {seconds} seconds"
        time.sleep(0.02)
