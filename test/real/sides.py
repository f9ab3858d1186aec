"""Processes of programs on either side, and their reported values."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build/real"
PYTHON = BUILD / "venv/bin/python"
TIMEOUT_S = 900

Values = dict[str, str]
"""Reported values by name; floats as text that is equal iff their bits are."""


class RunError(Exception):
    """A program that failed, with the place of its log."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Reported values of a program, and its durations.

    Attributes:
      values: its values.
      seconds: its duration.
      step_ms: milliseconds of its later steps, if it reports them.
      notes: other measurements.
    """

    values: Values
    seconds: float
    step_ms: float | None = None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Side:
    """Environment that a program runs in.

    Attributes:
      label: a word for names of files.
      prefix: the words before its command.
      environment: variables that it needs.
    """

    label: str
    prefix: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def is_proxied(self) -> bool:
        return bool(self.prefix)

    @contextlib.contextmanager
    def start(self, name: str, arguments: Sequence[object]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """Starts a Python program; yields its process and its log, and kills what is left of it."""
        BUILD.mkdir(parents=True, exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "PYTHON", "XLA_"))}
        kept |= {"DECOUPLE_GCLOUD": "TRUE", "TF_CPP_MIN_LOG_LEVEL": "2", "LIBTPU_INIT_ARGS": ""}
        log = BUILD / f"{name}-{self.label}.log"
        command = [*self.prefix, str(PYTHON), "-u", *map(str, arguments)]
        with (
            log.open("w") as file,
            subprocess.Popen(
                command,
                env=kept | dict(self.environment),
                stdout=file,
                stderr=file,
                cwd=BUILD,
                start_new_session=True,
            ) as process,
        ):
            try:
                yield process, log
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)

    def execute(self, name: str, arguments: Sequence[object], may_fail: bool = False) -> tuple[str, float]:
        """Runs a Python program; returns what it printed, and its seconds.

        Raises:
          RunError: it failed, or did not end.
        """
        began = time.monotonic()
        with self.start(name, arguments) as (process, log):
            try:
                code: object = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = f"none after {TIMEOUT_S} s"
            seconds = time.monotonic() - began
        text = log.read_text(errors="replace")
        if code not in ((0, 1) if may_fail else (0,)):
            last = (text.splitlines() or [""])[-1]
            raise RunError(f"exit code {code}: {last[:300]} ({log})")
        return text, seconds


def local_side(devices: int = 8) -> Side:
    """A program with JAX's CPU devices in its own process."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    variables = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "EQX_ON_ERROR": "nan"}
    return Side("local", environment=tuple(variables.items()))


IN_CLUSTER = "CLUSTER" in os.environ
"""Whether the server has eight devices on two hosts, and not in one process."""


def proxied(slices: int = 1, *, joined: bool = True) -> Side:
    """A program behind `pw-proxy`, with as many slices; on hosts these are islands, which may be joined."""
    flags = ["--cpu-devices", "8", "--islands", str(slices)]
    if IN_CLUSTER:
        flags = ["--hosts", "2", "--devices-per-host", "4", "--islands", str(slices)]
        flags += ["--joined"] if joined else []
    return Side("proxied", (sys.executable, "-m", "pathways.tools.pw_proxy", *flags, "--"))


Run = Callable[[str, Side], Outcome]
"""Function that runs a program, by name, on a side."""
