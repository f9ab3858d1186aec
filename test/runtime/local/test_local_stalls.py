"""Arrays of this process that are not computed are reported; nothing is counted while programs run."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pathways.runtime.local import stalls
from pathways.runtime.local.codegen import SOURCE_NAME
from pathways.runtime.local.stalls import LocalStalls, described


class Late:
    """An array that is not computed."""

    aval = SimpleNamespace(str_short=lambda: "float32[7]")

    def __init__(self) -> None:
        self.sharding = SimpleNamespace(device_set={jax.devices()[0]})


def test_local_stalls_report_a_late_array_once_in_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending: list[Any] = [Late()]
    monkeypatch.setattr(stalls, "_pending", lambda: list(pending))
    looks = LocalStalls(0.2, lambda: ["waits for host 2 at 10.0.0.5:7001"])
    with caplog.at_level(logging.WARNING, "pathways"):
        for _ in range(10):
            looks.look()
            time.sleep(0.05)
        # After 0.2 seconds, and again when these have doubled.
        assert 1 <= len(caplog.messages) <= 2
        assert caplog.messages[0].startswith("1 arrays have not been computed for 0 seconds\n")
        assert caplog.messages[0].splitlines()[1:] == [
            f"  on {jax.devices()[0]}: 1, float32[7]",
            "  waits for host 2 at 10.0.0.5:7001",
        ]
        caplog.clear()
        pending.clear()
        looks.look()
        # Another one, maybe at the same place.
        pending.append(Late())
        looks.look()
        assert not caplog.messages


def test_local_stalls_ignore_ready_and_deleted_arrays():
    array = jnp.ones(3) + 1
    array.block_until_ready()
    deleted = jnp.ones(3)
    deleted.delete()
    assert not any(one is array or one is deleted for one in stalls._pending())


def test_local_stalls_name_the_line_of_a_program_that_runs():
    entered, go_on = threading.Event(), threading.Event()
    source = compile("entered.set(); go_on.wait()", f"{SOURCE_NAME}f 0>", "exec")
    thread = threading.Thread(
        target=exec, args=(source, {"entered": entered, "go_on": go_on}), name="trainer"
    )
    thread.start()
    entered.wait()
    try:
        assert "thread trainer issues pathways program f 0" in described([Late()], 61)
    finally:
        go_on.set()
        thread.join()


LOOKING = """
import os, threading, time
from pathways.runtime.local import stalls

looking, go_on = threading.Event(), threading.Event()

def look(self):
    if not go_on.is_set():
        looking.set()
        go_on.wait()
        time.sleep(0.5)
        print("ended", flush=True)

stalls.LocalStalls.look = look
stalls.watch.set(0.01)
stalls.watch.start()
looking.wait()
{meanwhile}
go_on.set()
"""


FORK = "if child := os.fork(): print(os.waitpid(child, 0)[1], flush=True)"


@pytest.mark.process
@pytest.mark.parametrize(("meanwhile", "said"), [("", ""), (FORK, "0\n")], ids=["alone", "forked"])
def test_local_stalls_do_not_keep_processes_from_ending(meanwhile: str, said: str):
    """A thread that is inside of jaxlib at the end would abort it; a forked process has no such thread."""
    command = [sys.executable, "-c", LOOKING.format(meanwhile=meanwhile)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == f"{said}ended\n", result.stderr
