"""Training with `pw.resilient` when steps, sources or Ctrl-C raise: no batch is skipped or used twice."""

from __future__ import annotations

import collections
import random
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import pathways as pw
from pathways.compiler.data import prefetch
from pathways.compiler.resilience import resilient, source, step_metrics
from pathways.runtime.hosts.protocol.interrupts import uninterrupted

STEPS = 12


@pytest.fixture(autouse=True, params=["here", pytest.param("hosts", marks=pytest.mark.hosts)])
def islands(request: pytest.FixtureRequest) -> Iterator[str]:
    """Connects to two islands of a device."""
    pw.disconnect()
    pw.connect(hosts=2) if request.param == "hosts" else pw.connect(cpu_devices=2, islands=2)
    yield request.param
    pw.disconnect()


def summing() -> Any:
    """Returns a program that adds batches up, on both islands, and donates the sum and the batch."""
    devices = pw.make_virtual_device_set()
    first, last = (
        pw.jit(lambda total, x: total + x, devices=devices.add_slice((1,), ("x",), island=f"island{n}"))
        for n in range(2)
    )

    @pw.program(donate_argnums=(0, 1))
    def step(state: Any, x: Any) -> Any:
        total = last(first(state["total"], x), 0 * x)
        return {"total": total}, {"total": total * 1}

    return step


def start() -> Any:
    return {"total": np.zeros(4, np.float32)}


def batches() -> list[np.ndarray]:
    return [np.full(4, n, np.float32) for n in range(STEPS)]


def total_of(n: int) -> float:
    return n * (n + 1) / 2


def steps_of(run: Any, error: type[BaseException], tries: int) -> list[int]:
    """Runs all steps, checks their metrics, and returns how many were done at each error."""
    found, errors = 0, []
    for _ in range(tries):
        try:
            for n, metrics in run.steps(STEPS):
                assert n == found
                np.testing.assert_array_equal(metrics["total"], total_of(n))
                found += 1
        except error:
            errors.append(found)
    assert found == STEPS
    np.testing.assert_array_equal(jax.device_get(run.state["total"]), total_of(STEPS - 1))
    return errors


class Raising:
    """Step that raises once, at its fifth call.

    Args:
      step: the program that it calls.
      error: the error.
      when: "before" the program, "after" it, or after it has "stored" its result in the old state.
    """

    def __init__(self, step: Any, error: BaseException, when: str) -> None:
        self._step, self._error, self._when = step, error, when
        self.calls = 0

    def __call__(self, state: Any, x: Any) -> Any:
        self.calls += 1
        is_last = self.calls == 5
        if is_last and self._when == "before":
            raise self._error
        if not is_last or self._when == "after":
            state, metrics = self._step(state, x)
        else:
            state["total"] = self._step({"total": state["total"] + 0}, x)[0]["total"]
        if is_last:
            raise self._error
        return state, metrics


@pytest.mark.parametrize("when", ["before", "after", "stored"])
@pytest.mark.parametrize("error", [ValueError("transient"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_resilient_uses_the_batch_of_a_step_that_raised(error: BaseException, when: str) -> None:
    step = summing()
    train_step = Raising(step, error, when)
    with pw.resilient(train_step, start(), batches(), feeds=(step, "x"), every=3) as run:
        (done,) = steps_of(run, type(error), 2)
    # Steps before one that raises are given first; Ctrl-C is raised at once.
    assert done == 4 if isinstance(error, Exception) else done <= 4
    # Only a state that the step has consumed is restored.
    assert (train_step.calls == STEPS + 1) == (when != "after")


def test_resilient_restores_the_state_after_a_computation_that_failed(islands: str) -> None:
    if islands == "hosts":
        pytest.skip("hosts run no callbacks")
    calls = []

    def fail_once(x: Any) -> Any:
        calls.append(x)
        if len(calls) == 5:
            raise ValueError("transient")
        return x

    slice = pw.make_virtual_device_set().add_slice((1,), ("x",))

    def add(total: Any, x: Any) -> Any:
        return total + jax.pure_callback(fail_once, jax.ShapeDtypeStruct((4,), np.float32), x)

    one = pw.jit(add, devices=slice)

    @pw.program
    def step(state: Any, x: Any) -> Any:
        total = one(state["total"], x)
        return {"total": total}, {"total": total}

    with pw.resilient(step, start(), batches(), every=3) as run:
        assert steps_of(run, Exception, 2) == [4]


def test_resilient_does_not_take_a_step_that_ends_an_iterator_for_the_end_of_the_source() -> None:
    step = summing()
    train_step = Raising(step, StopIteration(), "before")
    with pw.resilient(train_step, start(), batches(), feeds=(step, "x"), every=3) as run:
        assert steps_of(run, RuntimeError, 2) == [4]


class Numbers(Iterator[Any]):
    """Source with positions, that raises once at some batch."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._rest = self._generate(0)
        self._number = 0
        self._error = error

    def _generate(self, first: int) -> Iterator[Any]:
        for n in range(first, STEPS):
            if n == 5 and self._error is not None:
                error, self._error = self._error, None
                raise error
            yield batches()[n]

    def __next__(self) -> Any:
        batch = next(self._rest)
        self._number += 1
        return batch

    def get_state(self) -> dict[str, int]:
        return {"number": self._number}

    def set_state(self, state: dict[str, int]) -> None:
        self._number = state["number"]
        self._rest = self._generate(self._number)


class RaisingList(list[Any]):
    """Sequence that raises once, at its sixth item."""

    has_raised = False

    def __getitem__(self, number: Any) -> Any:
        if number == 5 and not self.has_raised:
            self.has_raised = True
            raise OSError("transient")
        return super().__getitem__(number)


@pytest.mark.parametrize(
    "make", [lambda: Numbers(OSError("transient")), lambda: RaisingList(batches())], ids=["iterator", "list"]
)
def test_resilient_reads_the_batch_again_whose_source_raised(make: Callable[[], Any]) -> None:
    with pw.resilient(summing(), start(), make(), every=3) as run:
        assert steps_of(run, OSError, 2) == [5]


def test_resilient_continues_after_errors_of_the_body() -> None:
    step, found = summing(), []
    with pw.resilient(step, start(), Numbers(), every=3) as run:
        while len(found) < STEPS:
            try:
                for n, metrics in run.steps(STEPS):
                    found.append((n, float(metrics["total"][0])))
                    raise ValueError("of the body")
            except ValueError:
                pass
    assert found == [(n, total_of(n)) for n in range(STEPS)]


@pytest.fixture
def interrupt_after() -> Iterator[Callable[[float], None]]:
    """Returns a function that sends Ctrl-C to this thread after some seconds; none after 0."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("make", [Numbers, batches], ids=["iterator", "list"])
def test_resilient_continues_after_ctrl_c_at_random_moments(
    make: Callable[[], Any], interrupt_after: Callable[[float], None]
) -> None:
    chance = random.Random(3)
    step = summing()
    # Compiled here: an interrupt would make it start over each time.
    step(start(), batches()[0])
    interrupts = 0
    # A machine with a pause at the wrong moment has few interrupts: then the run is repeated.
    while interrupts <= STEPS:
        interrupts += finish_with_interrupts(make, step, chance, interrupt_after)


def finish_with_interrupts(
    make: Callable[[], Any],
    step: pw.Program,
    chance: random.Random,
    interrupt_after: Callable[[float], None],
) -> int:
    """Runs all steps, with Ctrl-C at random moments, and checks them; returns the number of interrupts."""
    found, interrupts = 0, 0
    with pw.resilient(lambda state, x: step(state, x), start(), make(), feeds=(step, "x"), every=3) as run:
        while found < STEPS:
            count = found + 1
            try:
                try:
                    interrupt_after(chance.uniform(1e-4, 4e-3))
                    for n, metrics in run.steps(count):
                        interrupt_after(0)
                        # Ctrl-C may come before the body of the loop has noted a step.
                        assert n >= found
                        found = n + 1
                        np.testing.assert_array_equal(metrics["total"], total_of(n))
                    # Without an iteration, Ctrl-C came between the run, which gave the step, and the loop.
                    found = max(found, count)
                finally:
                    # Ctrl-C may come here, too.
                    interrupt_after(0)
            except KeyboardInterrupt:
                interrupts += 1
            if interrupts % 8 == 7:
                # Some steps take longer than the time between interrupts.
                found += len([*run.steps(found + 1)])
                interrupts += 1
        np.testing.assert_array_equal(jax.device_get(run.state["total"]), total_of(STEPS - 1))
    return interrupts


class LineInterrupter:
    """Tracer that raises KeyboardInterrupt once before each line of some modules."""

    def __init__(self) -> None:
        self._files = {module.__file__ for module in (resilient, source, step_metrics, prefetch)}
        self.lines: collections.Counter[str] = collections.Counter()

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in self._files or uninterrupted._is_active:
            return None
        name = f"{frame.f_code.co_name}:{frame.f_lineno}"
        if event == "line" and name not in self.lines and not self._is_atomic(frame):
            self.lines[name] += 1
            raise KeyboardInterrupt
        return self

    @staticmethod
    def _is_atomic(frame: Any) -> bool:
        """Returns whether Python runs no handlers of signals between a line and the one before."""
        names = frame.f_locals
        return (frame.f_code.co_name == "steps" and "first" in names) or (
            frame.f_code.co_name == "__next__" and "batch" in names
        )


@pytest.mark.slow
@pytest.mark.parametrize("make", [Numbers, batches], ids=["iterator", "list"])
def test_resilient_continues_after_ctrl_c_at_each_line(make: Callable[[], Any]) -> None:
    step, interrupter = summing(), LineInterrupter()
    found = 0
    with pw.resilient(lambda state, x: step(state, x), start(), make(), feeds=(step, "x"), every=3) as run:
        while found < STEPS:
            try:
                sys.settrace(interrupter)
                for n, metrics in run.steps(STEPS):
                    sys.settrace(None)
                    assert n == found
                    found += 1
                    np.testing.assert_array_equal(metrics["total"], total_of(n))
                    sys.settrace(interrupter)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
        np.testing.assert_array_equal(jax.device_get(run.state["total"]), total_of(STEPS - 1))
    assert len(interrupter.lines) > 60
