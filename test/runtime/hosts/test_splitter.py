"""The process that splits programs serves clients in turn, and drops the programs of a disconnected one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from pathways.runtime.hosts.protocol.programs import BoundProgram, SplitProgram
from pathways.runtime.hosts.splitting import splitter
from pathways.runtime.hosts.splitting.splitter import ProgramSplitter, RefusedProgramError

PROCESS = """
import time
from pathlib import Path
import msgspec
from pathways.runtime.resources.child_process import serve_requests
from pathways.runtime.hosts.splitting.split_pipe import SplitReply, SplitRequest

def answer(request):
    name = msgspec.msgpack.decode(request, type=SplitRequest).program.name
    with open("begun", "a") as file:
        print(name, file=file)
    while name.startswith("waits") and not Path("go").exists():
        time.sleep(0.005)
    return msgspec.msgpack.encode(SplitReply(None, f"{name} was seen"))

serve_requests(answer)
"""


class Client:
    def __init__(self) -> None:
        self.disconnected = threading.Event()


class Splitter:
    """Splitter whose process only reports which programs it has seen."""

    def __init__(self, folder: Path) -> None:
        self.splitter = ProgramSplitter()
        self.folder = folder
        self._threads = ThreadPoolExecutor(8)

    def split(self, client: Client, name: str) -> Future[SplitProgram]:
        program = BoundProgram(name, b"", {}, {}, {}, (), ())
        return self._threads.submit(self.splitter.split, client, program, 1, multi_host=False)

    def begun(self) -> list[str]:
        path = self.folder / "begun"
        return path.read_text().split() if path.exists() else []

    def leave(self, client: Client) -> None:
        client.disconnected.set()
        self.splitter.cancel(client)


@pytest.fixture
def cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Splitter]:
    (tmp_path / "splitting_double.py").write_text(PROCESS)
    monkeypatch.setattr(splitter, "_MODULE", "splitting_double")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cut = Splitter(tmp_path)
    yield cut
    (tmp_path / "go").touch()
    cut.splitter.close()


def wait_until(is_so) -> None:
    deadline = threading.Event()
    for _ in range(2000):
        if is_so():
            return
        deadline.wait(0.005)
    raise AssertionError


@pytest.mark.process
def test_splitter_serves_clients_in_turn(cut):
    """A client with many programs does not delay another one."""
    ann, bob = Client(), Client()
    first = cut.split(ann, "waits")
    wait_until(cut.begun)
    more = [cut.split(ann, f"ann{n}") for n in range(3)]
    last = cut.split(bob, "bob")
    wait_until(lambda: len(cut.splitter._queue) == 2)
    (cut.folder / "go").touch()
    for future, name in ((first, "waits"), (last, "bob"), (more[0], "ann0")):
        with pytest.raises(RefusedProgramError, match=f"{name} was seen"):
            future.result(20)
    wait_until(lambda: len(cut.begun()) == 5)
    assert cut.begun()[:2] == ["waits", "bob"]


@pytest.mark.process
def test_splitter_drops_programs_of_a_client_that_left(cut):
    """The program that is being split is aborted, and those that wait are not begun."""
    ann, bob = Client(), Client()
    futures = [cut.split(ann, "waits0")]
    wait_until(cut.begun)
    futures += [cut.split(ann, f"waits{n}") for n in range(1, 4)]
    last = cut.split(bob, "bob")
    wait_until(lambda: len(cut.splitter._queue) == 2)
    cut.leave(ann)
    with pytest.raises(RefusedProgramError, match="bob was seen"):
        last.result(20)
    for future in futures:
        with pytest.raises(RefusedProgramError):
            future.result(20)
    assert cut.begun() == ["waits0", "bob"]
    cut.leave(bob)
    with pytest.raises(RefusedProgramError, match="its client has disconnected"):
        cut.split(bob, "bob").result(20)
