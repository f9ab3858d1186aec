"""Calls on a worker: in lanes beside the steps, but ordered among them; none harms the worker."""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathways.runtime.control.records.step import SESSION_BITS
from pathways.runtime.hosts.protocol import plain
from pathways.runtime.hosts.protocol.messages import Call, Called, DeviceLayout, KeptArray, ResultArray
from pathways.runtime.hosts.worker.array_store import ELSEWHERE, ArrayStore, FailedArray
from pathways.runtime.hosts.worker.call_runner import CallRunner

LAYOUT = DeviceLayout((0,), (1,), ("x",), ((),))


class Controller:
    """Connection to a controller, which keeps the replies."""

    def __init__(self) -> None:
        self._replies: queue.SimpleQueue[Called] = queue.SimpleQueue()

    def send(self, message: Called) -> None:
        self._replies.put(message)

    def next(self) -> Called:
        return self._replies.get(timeout=30)


@pytest.fixture
def store() -> ArrayStore:
    return ArrayStore({0: jax.devices()[0]})


def call(
    number: int, function: str, *arrays: int, lane: int = 1, has_results: bool = False, **named: object
) -> Call:
    tree = {"t": [*range(len(arrays))]}
    return Call(
        number,
        number + 1,
        (0,),
        f"host_functions:{function}",
        (),
        0,
        lane,
        False,
        tuple(KeptArray(array, None) for array in arrays),
        plain.encode([[], tree, named], "arguments"),
        (ResultArray((3,), "int32", LAYOUT),) if has_results else None,
        b"0",
    )


def test_worker_calls_of_one_lane_wait_for_each_other(store, tmp_path):
    controller = Controller()
    calls = CallRunner(0, store, controller)
    go = tmp_path / "go"
    calls.accept(call(1, "wait_for", path=str(go)))
    calls.accept(call(2, "plain", value="number"))
    calls.accept(call(3, "plain", lane=2, value="number"))
    assert controller.next() == Called(3, b"2.5", None)
    go.touch()
    assert [controller.next().call for _ in range(2)] == [1, 2]
    assert calls.report() == ()


def test_worker_calls_delay_steps_that_donate_their_arrays(store, tmp_path):
    controller = Controller()
    calls = CallRunner(0, store, controller)
    store.add(10, [jax.numpy.ones(3), jax.numpy.ones(2)])
    held, other = store.get(10), store.get(11)
    calls.accept(call(1, "wait_with", 10, path=str(tmp_path / "go")))
    calls.wait_for([other])
    waited = threading.Event()
    thread = threading.Thread(target=lambda: (calls.wait_for([held]), waited.set()))
    thread.start()
    assert not waited.wait(0.1)
    (tmp_path / "go").touch()
    assert controller.next().value == b"3.0"
    assert waited.wait(10)
    thread.join()
    assert not calls.holding


def test_worker_calls_give_arrays_that_steps_wait_for(store):
    controller = Controller()
    calls = CallRunner(0, store, controller)
    calls.accept(call(1, "three", has_results=True))
    np.testing.assert_array_equal(np.asarray(store.get(2)), [0, 0, 0])
    controller.next()
    calls.accept(call(5, "three", has_results=True))
    store.free([6])
    controller.next()
    assert store.available() == {2: store.get(2)}
    # A call that runs on another host of the island.
    calls.accept(msgspec.structs.replace(call(8, "three", has_results=True), hosts=(1,)))
    assert store.get(9) is ELSEWHERE


@settings(max_examples=100, deadline=None)
@given(
    arguments=st.binary(max_size=30)
    | st.sampled_from([b"[]", b"[1,2,3]", b'[[],{"t":[7]},{}]', b"[[],{},{}]"]),
    structure=st.binary(max_size=20) | st.sampled_from([b"{}", b'{"d":3}', b"[0]", b'"x"']),
    function=st.sampled_from(["host_functions:three", "host_functions:", "os:path", "x" * 300, ":", ""]),
    shape=st.sampled_from([(3,), (-1,), (1 << 40,)]),
)
def test_worker_calls_never_harm_the_worker(arguments, structure, function, shape):
    """A malformed call is an error of this call and of its results only."""
    store, controller = ArrayStore({0: jax.devices()[0]}), Controller()
    calls = CallRunner(0, store, controller)
    message = msgspec.structs.replace(
        call(1, "three", has_results=True),
        arguments=arguments,
        structure=structure,
        function=function,
        results=(ResultArray(shape, "int32", LAYOUT),),
    )
    calls.accept(message)
    reply = controller.next()
    assert reply.failure is not None
    assert isinstance(store.get(2), FailedArray)
    calls.accept(call(5, "plain", value="number"))
    assert controller.next() == Called(5, b"2.5", None)


def test_worker_calls_pass_on_errors(store):
    controller = Controller()
    calls = CallRunner(0, store, controller)
    store.add(10, [FailedArray("out of memory")])
    calls.accept(call(1, "total", 10))
    reply = controller.next()
    assert reply.failure is not None
    assert reply.failure.kind == "argument"
    assert "out of memory" in reply.failure.text


@pytest.fixture
def result_of(store, monkeypatch):
    """Function that calls a function of a client, with its path and edition, and returns the result."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loaded = {*sys.modules}
    controller = Controller()
    calls = CallRunner(0, store, controller)
    numbers = itertools.count(1)

    def result(client: int, function: str, *path: Path, edition: int = 0) -> object:
        message = msgspec.structs.replace(
            call(client << SESSION_BITS | next(numbers), ""),
            function=function,
            path=tuple(str(folder) for folder in path),
            edition=edition,
        )
        calls.accept(message)
        reply = controller.next()
        return plain.decode(reply.value) if reply.failure is None else reply.failure

    yield result
    for name in sys.modules.keys() - loaded:
        sys.modules.pop(name)


def written(folder: Path, text: str) -> Path:
    """Writes a module that counts its calls, and a module and a package that it imports."""
    folder.mkdir(exist_ok=True)
    (folder / "of_client.py").write_text(
        "import beside_it, of_package.inside\n"
        "calls = 0\n"
        "def texts():\n"
        "    global calls\n"
        "    calls += 1\n"
        "    return [beside_it.TEXT, of_package.inside.TEXT, calls]\n"
    )
    (folder / "beside_it.py").write_text(f"TEXT = {text!r}\n")
    (folder / "of_package").mkdir(exist_ok=True)
    (folder / "of_package" / "inside.py").write_text(f"TEXT = {text!r}\n")
    return folder


def test_worker_calls_import_modules_for_each_client(result_of, tmp_path):
    ann, bo = written(tmp_path / "ann", "ann"), written(tmp_path / "bo", "bo")
    for count in (1, 2):
        assert result_of(1, "of_client:texts", ann) == ["ann", "ann", count]
        assert result_of(2, "of_client:texts", bo) == ["bo", "bo", count]
    # Another client with the same files has modules of its own.
    assert result_of(3, "of_client:texts", ann) == ["ann", "ann", 1]
    failure = result_of(4, "of_client:texts", tmp_path)
    assert failure.kind == "import"
    assert str(tmp_path) in failure.text
    assert str(ann) not in failure.text


def test_worker_calls_import_only_changed_modules_again(result_of, tmp_path):
    first, other = written(tmp_path / "first", "first"), written(tmp_path / "other", "other")
    assert result_of(1, "of_client:texts", first) == ["first", "first", 1]
    written(first, "edited")
    assert result_of(1, "of_client:texts", first) == ["first", "first", 2]
    assert result_of(1, "of_client:texts", first, edition=3) == ["edited", "edited", 1]
    # A lower edition, of a function that was passed earlier, imports nothing again.
    assert result_of(1, "of_client:texts", first, edition=2) == ["edited", "edited", 2]
    assert result_of(1, "of_client:texts", other, first, edition=3) == ["other", "other", 1]


def test_worker_calls_import_installed_modules_once(result_of, tmp_path):
    """Also in a folder of its own, as by `pip install --target`."""
    libraries = written(tmp_path / "libraries", "installed")
    (libraries / "of_client-1.0.dist-info").mkdir()
    for client in (1, 2):
        for edition in (1, 2):
            count = 2 * client + edition - 2
            results = result_of(client, "of_client:texts", libraries, edition=edition)
            assert results == ["installed", "installed", count]
