"""Sessions of a lab: a controller on machine 0, workers on the others, and commands for them."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from lab import Lab

SCRIPT = Path(__file__).with_name("controller_side.py")


def compiled_code() -> list[str]:
    """Returns the folder of compiled code of this run, which machines of a lab may share."""
    folder = os.environ.get("PW_CACHE_DIR", "")
    return [folder] if Path(folder).is_dir() and folder.startswith("/tmp/") else []


class Session:
    """Cluster in a lab while it is entered: machine 0 has the controller, each other one a host.

    Args:
      lab: the lab.
      islands: the machines of each island; by default each machine but the first is one.
      start: the command that starts a worker.
      schedule: the policy that orders the pipeline.
      stages: number of stages, on the islands in turn.
      options: fields of `pathways.HostOptions`.

    Attributes:
      expected: the sums of the weights after 1, 2 and 3 steps in one process.
      seconds: how long connecting took, or failing to.
      pids: room for the processes of the workers.
    """

    pids: tuple[int, ...] = ()

    def __init__(
        self,
        lab: Lab,
        islands: list[list[int]] | None = None,
        *,
        start: str | None = None,
        schedule: str = "1f1b",
        stages: int | None = None,
        **options: Any,
    ) -> None:
        self.lab = lab
        islands = [[n] for n in range(1, lab.machines)] if islands is None else islands
        config = {
            "islands": [[lab.address(machine) for machine in island] for island in islands],
            "bind": lab.address(0),
            "start": start or lab.start,
            "schedule": schedule,
            "stages": len(islands) if stages is None else stages,
            "options": options,
        }
        self._process = lab.popen(
            0,
            [sys.executable, str(SCRIPT), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(config["stages"])},
        )
        self._replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.errors: list[str] = []
        for work in (self._read, self._read_errors):
            threading.Thread(target=work, daemon=True).start()

    def __enter__(self) -> Session:
        reply = self.receive(120)
        self.seconds: float = reply["seconds"]
        if "error" in reply:
            self.__exit__(None, None, None)
            raise AssertionError(reply["error"])
        self.expected: list[str] = reply["expected"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.lab.kill(self._process)
            raise AssertionError(f"the controller does not end; it wrote\n{''.join(self.errors)}") from None

    def send(self, do: str, **what: Any) -> None:
        """Sends a command, whose reply `receive` returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **what}) + "\n")

    def receive(self, seconds: float = 120) -> dict[str, Any]:
        """Returns the next reply.

        Raises:
          AssertionError: no reply within this many seconds: the controller hangs.
        """
        try:
            reply = self._replies.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"nothing for {seconds} s; it wrote\n{''.join(self.errors)}") from None
        if reply is None:
            raise AssertionError(f"the controller has ended; it wrote\n{''.join(self.errors)}")
        return reply

    def run(self, do: str, **what: Any) -> dict[str, Any]:
        """Runs a command, and returns its reply."""
        self.send(do, **what)
        return self.receive()

    def check(self, steps: int = 3) -> dict[str, Any]:
        """Trains some steps and checks that the weights are those of one process, to the bit."""
        reply = self.run("train", steps=steps)
        assert reply.get("sum") == self.expected[steps - 1], reply
        return reply

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(json.loads(line))
        self._replies.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.errors.append(line)
