"""Reports of arrays of this process that stay pending."""

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
from pathways.runtime.local.stalls import LocalStalls, describe


class Late:
    """Array that is never computed."""

    aval = SimpleNamespace(str_short=lambda: "float32[7]")

    def __init__(self) -> None:
        self.sharding = SimpleNamespace(device_set={jax.devices()[0]})


def test_local_stalls_report_a_late_array_once_in_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending: list[Any] = [Late()]
    monkeypatch.setattr(stalls, "_pending_arrays", lambda: list(pending))
    detector = LocalStalls(0.2, lambda: ["waits for host 2 at 10.0.0.5:7001"])
    with caplog.at_level(logging.WARNING, "pathways"):
        for _ in range(10):
            detector.poll()
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
        detector.poll()
        # A new array, perhaps with the same id.
        pending.append(Late())
        detector.poll()
        assert not caplog.messages


def test_local_stalls_ignore_ready_and_deleted_arrays():
    array = jnp.ones(3) + 1
    array.block_until_ready()
    deleted = jnp.ones(3)
    deleted.delete()
    assert not any(each is array or each is deleted for each in stalls._pending_arrays())


def test_local_stalls_name_the_line_of_a_program_that_runs():
    entered, go_on = threading.Event(), threading.Event()
    source = compile("entered.set(); go_on.wait()", f"{SOURCE_NAME}f 0>", "exec")
    thread = threading.Thread(
        target=exec, args=(source, {"entered": entered, "go_on": go_on}), name="trainer"
    )
    thread.start()
    entered.wait()
    try:
        assert "thread trainer issues pathways program f 0" in describe([Late()], 61)
    finally:
        go_on.set()
        thread.join()


POLLING = """
import os, threading, time
from pathways.runtime.local import stalls

polling, go_on = threading.Event(), threading.Event()

def poll(self):
    if not go_on.is_set():
        polling.set()
        go_on.wait()
        time.sleep(0.5)
        print("ended", flush=True)

stalls.LocalStalls.poll = poll
stalls.monitor.configure(0.01)
stalls.monitor.start()
polling.wait()
{meanwhile}
go_on.set()
"""


FORK = "if child := os.fork(): print(os.waitpid(child, 0)[1], flush=True)"


@pytest.mark.process
@pytest.mark.parametrize(("meanwhile", "printed"), [("", ""), (FORK, "0\n")], ids=["alone", "forked"])
def test_local_stalls_do_not_keep_processes_from_ending(meanwhile: str, printed: str):
    """A thread inside of jaxlib at exit would abort the process; a forked process has no such thread."""
    command = [sys.executable, "-c", POLLING.format(meanwhile=meanwhile)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == f"{printed}ended\n", result.stderr
