"""Generated functions: source, registers, and interrupts."""

import contextlib
import gc
import linecache
import traceback

import numpy as np
import pytest

from pathways.dialect.attributes.origins import Origin
from pathways.runtime.local import codegen
from pathways.runtime.plan import plan


class Recorder(codegen.StepTarget):
    """Target whose launches and copies compute on tuples of names, so that a test sees the calls."""

    def __init__(self, fail: str = "", **hooks) -> None:
        self.fail = fail
        self.calls: list[str] = []
        self.constants = {}
        for name, hook in hooks.items():
            setattr(self, name, hook)

    @staticmethod
    def copy_arrays(arrays: list[str], targets: tuple[str, ...]) -> list[str]:
        return [f"{array}@{target}" for array, target in zip(arrays, targets, strict=True)]

    def kernel(self, launch: plan.Launch) -> codegen.Kernel:
        def execute(arrays: list[str]) -> "Issued":
            if launch.computation == self.fail:
                raise KeyboardInterrupt
            self.calls.append(launch.computation)
            return Issued([f"{launch.computation}({', '.join(arrays)})"])

        return codegen.Kernel(execute, ())

    def copies(self, transfers):
        return (tuple(transfer.dst for transfer in transfers),)

    def routed(self, transfer):
        if transfer.routes is None:
            return None
        return lambda arrays: [f"{' '.join(arrays)}#{n}" for n in range(len(transfer.results))]

    def finish(self, result, slice):
        return None

    def send(self, send):
        return lambda arrays: self.calls.append(f"send {send.index} to {send.peer}: {' '.join(arrays)}")

    def receive(self, receive):
        return lambda: [f"{receive.channel}#{n}" for n in range(len(receive.results))]


class Issued:
    def __init__(self, values: list[str]) -> None:
        self.values = values

    def consume_with_handlers(self, handlers) -> list[str]:
        return self.values


TYPE = plan.ArrayType((), "float32")


def make(steps, results, slots, arguments=(0,), observer=None, **hooks):
    the_plan = plan.Plan(
        name="f",
        slices={},
        computations={},
        arguments=tuple(plan.Argument(TYPE, {"s0": slot}) for slot in arguments),
        results=tuple(plan.Result(TYPE, {"s0": slot}) for slot in results),
        steps=tuple(steps),
        slot_types=(TYPE,) * slots,
    )
    return codegen.generate(the_plan, Recorder(**hooks), observer)


def launch(name: str, operands: tuple[int, ...], result: int) -> plan.Launch:
    return plan.Launch(name, "s0", operands, (result,), f"{name} on s0")


def test_codegen_writes_a_straight_line():
    steps = [
        launch("a", (0,), 1),
        plan.Transfer((1,), (2,), "s0", "s1"),
        plan.Release((1,)),
        plan.Transfer((0,), (3,), "s0", "s1"),
        launch("b", (2, 3), 4),
        plan.Release((2, 3)),
    ]
    generated = make(steps, (4,), 5)
    assert generated.run(["x"]) == ["b(a(x)@s1, x@s1)"]
    assert generated.source == (
        "def run(arrays):\n"
        "    v0, = arrays\n"
        "    v1, = launch1([v0]).consume_with_handlers(results2)  # a on s0\n"
        "    v2, v3, = copy0([v1, v0], to3)  # s0 -> s1\n"
        "    del v1\n"
        "    v1, = launch4([v2, v3]).consume_with_handlers(results2)  # b on s0\n"
        "    del v2, v3\n"
        "    return [v1]  # results\n"
    )


def test_codegen_issues_steps_within_spans_during_a_profile():
    class Span:
        open = 0
        names: list[str] = []

        def __init__(self, name: str) -> None:
            self.names.append(name)

        def __enter__(self):
            assert not Span.open
            Span.open += 1

        def __exit__(self, *_):
            Span.open -= 1

    forward = plan.Launch("front", "s0", (0,), (1,), "front[3]", (Origin("fwd", stage=0, microbatch=3),), 3)
    steps = [forward, plan.Transfer((1,), (2,), "s0", "s1"), plan.Launch("glue", "s1", (2,), (3,), "glue")]
    profiled = []
    generated = make(steps, (3,), 4, span=Span, is_profiled=lambda: bool(profiled))
    assert generated.run(["x"]) == ["glue(front(x)@s1)"]
    assert Span.names == []
    profiled.append(True)
    assert generated.run(["x"]) == ["glue(front(x)@s1)"]
    assert Span.names == ["s0 F3 front", "s0 -> s1", "s1 glue"]
    assert not Span.open


def test_codegen_calls_once_more_for_a_transfer_of_a_transfer():
    steps = [plan.Transfer((0,), (1,), "s0", "s1"), plan.Transfer((1,), (2,), "s1", "s2")]
    generated = make(steps, (2,), 3)
    assert generated.run(["x"]) == ["x@s1@s2"]
    assert generated.source.count("copy0(") == 2


def test_codegen_calls_once_for_a_transfer_of_pieces():
    steps = [
        plan.Transfer((0,), (1,), "s0", "s1"),
        plan.Transfer((0, 2), (3, 4), "s0", "s1", (((0, 0),), ((1, 0),))),
        plan.Release((0, 2)),
    ]
    generated = make(steps, (1, 3, 4), 5, arguments=(0, 2))
    assert generated.run(["x", "y"]) == ["x@s1", "x y#0", "x y#1"]
    assert "    v2, v3, = routed1([v0, v1])  # s0 -> s1\n" in generated.source


def test_codegen_calls_once_for_each_send_and_receive():
    steps = [
        plan.Transfer((0,), (1,), "s0", "s1"),
        plan.Send((0,), "s0", "s2", "c0", peer=1, index=4),
        plan.Receive((2, 3), "s2", "s0", "c1", peer=1, index=7),
        plan.Transfer((2,), (4,), "s0", "s1"),
        plan.Release((2,)),
        launch("a", (3, 4), 5),
    ]
    generated = make(steps, (1, 5), 6)
    assert generated.run(["x"]) == ["x@s1", "a(c1#1, c1#0@s1)"]
    assert "    send2([v0])  # s0 -> s2 (host 1)\n" in generated.source
    assert "    v2, v3, = receive3()  # s2 -> s0 (host 1)\n" in generated.source


def test_codegen_reports_receives_to_an_observer():
    notes = []

    class Observer:
        first_launch_id = 0
        note = staticmethod(notes.append)

        def begin(self):
            return self

        def flush(self):
            pass

        def now(self):
            return 0

        def is_awaitable(self, slot):
            return slot != 2

    steps = [
        plan.Send((0,), "s0", "s2", "c0", peer=1, index=0),
        plan.Receive((1, 2), "s2", "s0", "c1", peer=1, index=1),
    ]
    spans = []

    def span(name):
        spans.append(name)
        return contextlib.nullcontext()

    assert make(steps, (1, 2), 3, span=span, observer=Observer()).run(["x"]) == ["c1#0", "c1#1"]
    assert notes == [(0, 0, ()), (1, 0, ("c1#0",))]
    assert spans == ["s0 -> s2 (host 1)", "s2 -> s0 (host 1)"]


def test_codegen_deletes_a_donated_argument():
    class Array(str):
        deleted = False

        def delete(self) -> None:
            self.deleted = True

    x = Array("x")
    generated = make([launch("a", (0,), 1), plan.Release((0,), delete=(0,))], (1,), 2)
    assert generated.run([x]) == ["a(x)"]
    assert x.deleted


def test_codegen_gives_constants_a_name_and_no_register():
    generated = make([launch("a", (0, 1), 2), plan.Release((1,))], (2,), 3, constants={1: "c"})
    assert generated.run(["x"]) == ["a(x, c)"]
    assert generated.run(["y"]) == ["a(y, c)"]


def test_codegen_survives_an_interrupt():
    class Lock:
        held = 0

        def __enter__(self):
            self.held += 1

        def __exit__(self, *_):
            self.held -= 1

    lock = Lock()
    generated = make([launch("a", (0,), 1), launch("b", (1,), 2)], (2,), 3, order=lock, fail="b")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as caught:
            generated.run(["x"])
        assert lock.held == 0
    assert any("# b on s0" in line for line in traceback.format_tb(caught.tb))


def test_codegen_explains_an_error_with_its_step():
    seen = []

    def explain(lines, error, arrays):
        seen.append((lines[error.__traceback__.tb_lineno], arrays))

    generated = make([launch("a", (0,), 1), launch("b", (1,), 2)], (2,), 3, explain=explain)
    generated.run.__globals__["launch3"] = lambda arrays: 1 / 0
    with pytest.raises(ZeroDivisionError):
        generated.run(["x"])
    ((line, arrays),) = seen
    assert (line.label, line.reads, line.places, arrays) == ("b on s0", (1,), ("v1",), ["x"])


def test_codegen_forgets_lines_with_their_function():
    generated = make([launch("a", (0,), 1)], (1,), 2)
    filename = generated.run.__code__.co_filename
    assert linecache.getline(filename, 3).strip().endswith("# a on s0")
    del generated
    gc.collect()
    assert filename not in linecache.cache


def test_codegen_of_4000_steps_needs_few_registers():
    steps = []
    for number in range(2000):
        steps += [launch(f"c{number % 50}", (number,), number + 1), plan.Release((number,))]
    generated = make(steps, (2000,), 2001)
    assert generated.run.__code__.co_nlocals == 3
    assert np.size(generated.run(["x"])) == 1
