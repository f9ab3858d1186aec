"""Host programs give the results of the whole program, whether hosts wait for each other or not.

Arrays are terms: the computation that produces them, and its arguments. Reading a donated or deleted array is
an error.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from host_programs import programs, scheduled, split
from hypothesis import event, given, settings

from examples import examples
from pathways.runtime.local import codegen
from pathways.runtime.local.memory import analyze
from pathways.runtime.plan.lower import host_plans_of, plan_of
from pathways.runtime.plan.plan import Launch, Plan, Receive, Send, Slot, Transfer

Term = Any
Results = dict[tuple[int, str], "Array"]
_SECONDS = 20.0
"""Time after which a host that waits for another counts as stuck."""


class Array:
    """Array that is computed when it is read."""

    def __init__(self, compute: Callable[[], Term]) -> None:
        self.compute = functools.cache(compute)
        self.alive = True

    def delete(self) -> None:
        self.alive = False

    def used(self) -> Callable[[], Term]:
        """Returns the function that computes it, for a holder of its buffer."""
        assert self.alive, "an array is used after it was donated or deleted"
        return self.compute

    def copied(self) -> Array:
        return Array(self.used())


class Wire:
    """Arrays in flight between hosts, by the index of the transfer."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent: dict[int, queue.SimpleQueue[list[Array]]] = {}

    def at(self, index: int) -> queue.SimpleQueue[list[Array]]:
        with self.lock:
            return self.sent.setdefault(index, queue.SimpleQueue())


class Target(codegen.HostTarget):
    """Target that computes terms.

    Args:
      plan: the plan.
      wire: the arrays in flight between hosts.
      waits: whether a receive waits for the arrays; otherwise it returns pending ones.
      constants: the arrays in slots that the caller does not pass.
    """

    def __init__(self, plan: Plan, wire: Wire, waits: bool, constants: dict[Slot, Array]) -> None:
        self.constants = constants
        self.plan = plan
        self.wire = wire
        self.waits = waits

    def kernel(self, launch: Launch) -> codegen.Kernel:
        name, _, _ = launch.computation.partition("_")
        donated = self.plan.computations[launch.computation].donated

        def execute(arrays: list[Array]) -> list[Array]:
            operands = [array.used() for array in arrays]
            for number in donated:
                arrays[number].delete()
            return [
                Array(lambda k=k: (name, launch.slice, k, *(operand() for operand in operands)))
                for k in range(len(launch.results))
            ]

        return codegen.Kernel(execute, None)

    @staticmethod
    def copy_arrays(arrays: list[Array]) -> list[Array]:
        return [array.copied() for array in arrays]

    def copies(self, transfers: Sequence[Transfer]) -> tuple[Any, ...]:
        return ()

    def routed(self, transfer: Transfer) -> Callable[[list[Array]], list[Array]] | None:
        if transfer.routes is None:
            return None
        return lambda arrays: moved([array.used() for array in arrays], transfer)

    def finish(self, result: int, slice: str) -> Callable[[Array], Array] | None:
        own = self.plan.uncopied_slots.get(self.plan.results[result].slots[slice]) == result
        return None if own else Array.copied

    def send(self, send: Send) -> Callable[[list[Array]], None]:
        def put(arrays: list[Array]) -> None:
            computed = [array.copied() for array in arrays] if send.copy else arrays
            assert all(array.used() for array in computed)
            self.wire.at(send.index).put(list(computed))

        return put

    def receive(self, receive: Receive) -> Callable[[], list[Array]]:
        @functools.cache
        def arrived() -> list[Array]:
            # Only now does the other host drop the arrays that it sent.
            arrays = self.wire.at(receive.index).get(timeout=_SECONDS)
            return moved([array.used() for array in arrays], receive)

        def get() -> list[Array]:
            if self.waits:
                return arrived()
            return [Array(lambda k=k: arrived()[k].compute()) for k in range(len(receive.results))]

        return get


def moved(operands: Sequence[Callable[[], Term]], step: Transfer | Receive) -> list[Array]:
    """Returns the results of a transfer, or of a send and a receive."""
    if step.routes is None:
        return [Array(operands[0])]
    return [
        Array(lambda routes=routes: ("pieces", routes, *(operand() for operand in operands)))
        for routes in step.routes
    ]


class Run:
    """Call of a plan, with the arrays that the caller passes and gets."""

    def __init__(self, plan: Plan, wire: Wire, waits: bool = False) -> None:
        self.plan = plan
        numbers = plan.argument_numbers or range(len(plan.arguments))
        self.arguments: dict[Slot, Array] = {
            slot: Array(lambda number=number, slice=slice: ("argument", number, slice))
            for number, argument in zip(numbers, plan.arguments, strict=True)
            for slice, slot in argument.slots.items()
        }
        constants = {
            slot: self.arguments[slot] for a in plan.arguments if a.constant for slot in a.slots.values()
        }
        self.passed = [array for slot, array in self.arguments.items() if slot not in constants]
        given = {slot for a in plan.arguments if a.donated or a.constant for slot in a.slots.values()}
        self.kept = [array for slot, array in self.arguments.items() if slot not in given]
        self.run = codegen.generate(plan, Target(plan, wire, waits, constants)).run
        self.results: Results = {}

    def __call__(self) -> None:
        numbers = self.plan.result_numbers or range(len(self.plan.results))
        ports = [
            (number, slice)
            for number, result in zip(numbers, self.plan.results, strict=True)
            for slice in result.slots
        ]
        self.results = dict(zip(ports, self.run(self.passed), strict=True))

    def terms(self) -> dict[tuple[int, str], Term]:
        return {port: array.compute() for port, array in self.results.items()}


def whole_terms(text: str) -> dict[tuple[int, str], Term]:
    run = Run(plan_of(scheduled(text), "f"), Wire())
    run()
    return run.terms()


@settings(max_examples=examples(40), deadline=None)
@given(programs())
def test_host_plans_without_waits_give_the_same_terms(program: tuple[str, list[int]]):
    text, hosts = program
    wire = Wire()
    runs = [Run(plan, wire) for plan in host_plans_of(split(scheduled(text), hosts), "f").values()]
    event(f"hosts: {len(runs)}")
    for run in runs:
        run()
    # Before any array has arrived, the caller deletes all arrays that it has; it does not have donated ones.
    results = {port: array.compute for run in runs for port, array in run.results.items()}
    for run in runs:
        for array in (*run.results.values(), *run.kept):
            array.delete()
    assert {port: compute() for port, compute in results.items()} == whole_terms(text)


@settings(max_examples=examples(40), deadline=None)
@given(programs())
def test_host_plans_with_waits_give_the_same_terms(program: tuple[str, list[int]]):
    text, hosts = program
    wire = Wire()
    plans = host_plans_of(split(scheduled(text), hosts), "f")
    runs = [Run(plan, wire, waits=True) for plan in plans.values()]
    threads = [threading.Thread(target=run) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {port: term for run in runs for port, term in run.terms().items()} == whole_terms(text)


@settings(max_examples=examples(40), deadline=None)
@given(programs())
def test_host_plans_have_the_peak_of_their_steps(program: tuple[str, list[int]]):
    text, hosts = program
    for plan in host_plans_of(split(scheduled(text), hosts), "f").values():
        peaks = {name: memory.peak_memory_in_bytes for name, memory in analyze(plan, {}).items()}
        assert peaks == dict(plan.peak_bytes)


def test_host_plans_exist_only_in_host_form():
    module = scheduled('module @f attributes {pw.form = "unrolled"} { func.func @main() { return } }')
    with pytest.raises(ValueError, match="program 'f' is in form 'scheduled', not 'host'"):
        host_plans_of(module, "f")
    with pytest.raises(ValueError, match="program 'f' is in form 'host', not 'scheduled'"):
        plan_of(split(module, []), "f")
