"""Processes with limits: they reply, or the caller gets an error about their exit; they exit with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pathways.runtime.resources.child_process import ChildProcess, LimitedProcess, NoReplyError

pytestmark = pytest.mark.process

REPLIES = """
import os
import sys
import time

from pathways.runtime.resources.child_process import serve_requests


def reply(request):
    match request.split():
        case [b"exit"]:
            print("it went wrong", file=sys.stderr)
            os._exit(3)
        case [b"crash"]:
            os.abort()
        case [b"fail"]:
            raise MemoryError("no memory")
        case [b"fill"]:
            bytearray(1 << 33)
        case [b"wait"]:
            time.sleep(60)
        case [b"say"]:
            print("x" * 300_000, file=sys.stderr)
            print("not a reply")
        case [b"lie"]:
            os.write(0, (1 << 60).to_bytes(8))
            os._exit(0)
        case [b"pid"]:
            return str(os.getpid()).encode()
    return request


serve_requests(reply, 1 << 32)
"""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LimitedProcess]:
    (tmp_path / "process_of_test.py").write_text(REPLIES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with contextlib.closing(LimitedProcess("process_of_test")) as process:
        yield process


def test_limited_process_replies(process):
    large = bytes(1 << 22)
    assert process.call(b"", 30) == b""
    assert process.call(large, 30) == large
    # Its output is no reply, and does not block it.
    assert process.call(b"say", 30) == b"say"
    assert process.call(b"pid", 30) == process.call(b"pid", 30)


@pytest.mark.parametrize(
    ("request_", "seconds", "message"),
    [
        (b"exit", 30, "exited (exit code 3: it went wrong)"),
        (b"crash", 30, "crashed (SIGABRT)"),
        (b"fail", 30, "exited (exit code 1: MemoryError: no memory)"),
        (b"fill", 30, "exited (exit code 1: MemoryError)"),
        (b"lie", 30, "exited (exit code 0)"),
        (b"wait", 0.5, "did not return within 0.5 s"),
    ],
)
def test_limited_process_fails_without_a_reply_and_starts_again(process, request_, seconds, message):
    process.start()
    with pytest.raises(NoReplyError) as error:
        process.call(request_, seconds)
    assert str(error.value) == message
    assert process.call(b"next", 30) == b"next"


def test_limited_process_is_killed_by_another_thread(process):
    pid = int(process.call(b"pid", 30))
    threading.Timer(0.2, process.kill).start()
    with pytest.raises(NoReplyError, match=r"^crashed \(SIGKILL\)$"):
        process.call(b"wait", 30)
    process.start()
    assert int(process.call(b"pid", 30)) != pid


def test_limited_process_starts_again_after_it_was_killed(process):
    pid = int(process.call(b"pid", 30))
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
    process.start()
    assert int(process.call(b"pid", 30)) != pid


PARENT = """
import threading

from pathways.runtime.resources.child_process import LimitedProcess

process = LimitedProcess("process_of_test")
# The thread of the first request exits: it must not be the thread that starts the child.
first = threading.Thread(target=lambda: print(process.call(b"pid", 30).decode(), flush=True))
first.start()
first.join()
process.call(b"next", 30)
print("replied", flush=True)
process.call(b"wait", 60)
"""


def test_limited_process_exits_with_its_parent(process):
    command = [sys.executable, "-c", textwrap.dedent(PARENT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == b"replied\n"
        parent.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_child_process_keeps_last_lines():
    script = "import sys; [print(n, file=sys.stderr) for n in range(1000)]; sys.exit(2)"
    heard: list[str] = []
    child = ChildProcess([sys.executable, "-c", script], on_line=heard.append)
    assert child.exit_code(30) == 2
    assert child.last_lines() == tuple(map(str, range(980, 1000)))
    assert heard == [f"{n}\n" for n in range(1000)]


def test_child_process_that_cannot_start():
    with pytest.raises(FileNotFoundError, match="no_such_program"):
        ChildProcess(["no_such_program"])
