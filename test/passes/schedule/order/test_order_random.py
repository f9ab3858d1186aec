"""The proof of a schedule agrees with running it in all interleavings: random programs, orders, channels."""

from __future__ import annotations

import dataclasses

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from examples import examples
from pathways.dialect import make_context
from pathways.dialect.relations import order as orders
from pathways.dialect.relations.program_view import read_program

CONTEXT = make_context()


@dataclasses.dataclass(frozen=True)
class Launch:
    """Launch that reads results of launches on its slice, and values that transfers bring there."""

    slice: int
    local: tuple[int, ...]
    moved: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Send:
    """Transfer of the result of a launch, or of an argument if there is none, to another slice."""

    slice: int
    target: int
    value: int | None
    channel: int


@dataclasses.dataclass(frozen=True)
class Program:
    """Events in an order that meets data edges, as in a block.

    Attributes:
      events: launches and sends; they name each other by their numbers.
      queues: the queue of each slice.
      orders: the events of each queue in the order in which it runs them.
      channels: source, target and capacity of each channel.
    """

    events: tuple[Launch | Send, ...]
    queues: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    channels: tuple[tuple[int, int, int], ...]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    slices = draw(st.sampled_from([2, 2, 3, 4]))
    overlap = draw(st.sampled_from([0, 0, 2, 3]))
    queues = tuple(0 if n < overlap else n for n in range(slices))
    pairs = [(a, b) for a in range(slices) for b in range(slices) if a != b]
    rooms = st.sampled_from([1, 2, 4])
    channels = [(*pair, draw(rooms)) for pair in pairs for _ in range(draw(st.sampled_from([1, 1, 2])))]
    events: list[Launch | Send] = []
    sends: dict[tuple[int, int], int] = {}

    def send(value: int | None, source: int, target: int) -> int:
        choice = [n for n, channel in enumerate(channels) if channel[:2] == (source, target)]
        events.append(Send(source, target, value, draw(st.sampled_from(choice))))
        return len(events) - 1

    for _ in range(draw(st.integers(2, 9))):
        place = draw(st.integers(0, slices - 1))
        launches = [n for n, e in enumerate(events) if isinstance(e, Launch)]
        read = draw(st.lists(st.sampled_from(launches), max_size=3, unique=True)) if launches else []
        moved = []
        for n in read:
            if events[n].slice != place:
                if (n, place) not in sends:
                    sends[n, place] = send(n, events[n].slice, place)
                moved.append(sends[n, place])
        if draw(st.booleans()):
            moved.append(send(None, draw(st.sampled_from([s for s in range(slices) if s != place])), place))
        events.append(Launch(place, tuple(n for n in read if events[n].slice == place), tuple(moved)))
        if draw(st.integers(0, 3)) == 0:
            # A result of the program, which no launch reads.
            send(len(events) - 1, place, draw(st.sampled_from([s for s in range(slices) if s != place])))
    # Little noise gives orders that can often be met, much noise hardly ever.
    noise = draw(st.sampled_from([0, 2, 4, 20]))
    keys = [n + draw(st.integers(0, noise)) for n in range(len(events))]
    orders = [[n for n in range(len(events)) if queues[events[n].slice] == q] for q in range(slices)]
    ordered = tuple(tuple(sorted(order, key=lambda n: (keys[n], n))) for order in orders)
    return Program(tuple(events), queues, ordered, tuple(channels))


def text_of(program: Program) -> str:
    """The program as a module."""
    slices = range(len(program.queues))
    shared = {s for s in slices if program.queues.count(program.queues[s]) > 1}
    lines = ["!x = tensor<4xf32>", 'sdy.mesh @mesh = <["x"=1]>']
    lines += [
        f'"pw.slice"() {{sym_name = "s{s}", mesh = @mesh{", overlap" if s in shared else ""}}} : () -> ()'
        for s in slices
    ]
    lines += [
        f'"pw.channel"() {{sym_name = "c{n}", src = @s{a}, dst = @s{b}, capacity = {room}, value_type = !x}} '
        ": () -> ()"
        for n, (a, b, room) in enumerate(program.channels)
    ]
    arguments = ", ".join(f"%x{s}: !x {{pw.slice = @s{s}}}" for s in slices)
    lines.append(f"func.func @main({arguments}) -> (!x {{pw.slice = @s0}}) {{")
    position = {n: k for order in program.orders for k, n in enumerate(order)}
    for n, e in enumerate(program.events):
        where = f"order = {position[n]}"
        if isinstance(e, Launch):
            read = [f"%x{e.slice}", *(f"%v{k}" for k in (*e.local, *e.moved))]
            types = ", ".join(["!x"] * len(read))
            lines.append(
                f'%v{n} = "pw.launch"({", ".join(read)}) {{callee = @f{len(read)}, slice = @s{e.slice}, '
                f"{where}}} : ({types}) -> !x"
            )
        else:
            value = f"%x{e.slice}" if e.value is None else f"%v{e.value}"
            lines.append(
                f'%v{n} = "pw.transfer"({value}) {{channel = @c{e.channel}, slice = @s{e.target}, '
                f"{where}}} : (!x) -> !x"
            )
    lines.append("return %x0 : !x\n}")
    lines += [f"func.func private @f{n}({', '.join(['!x'] * n)}) -> !x" for n in range(1, 6)]
    return "\n".join(lines)


class Interpreter:
    """Interpreter with a blocking process for every queue; the state is the progress of each of them.

    A launch blocks until its operands are there. A queue that has come to the first launch that reads a
    transferred value takes it out of its channel, as soon as it is next in line there. A send blocks while
    its channel is full. A value that nobody reads is dropped when it is next in line. What is in the channels
    follows from how far the queues are, so that the counters are the whole state.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.line: list[list[int]] = [[] for _ in program.channels]
        before: dict[int, list[int]] = {}
        for order in program.orders:
            for position, n in enumerate(order):
                before[n] = list(order[:position])
                e = program.events[n]
                if isinstance(e, Send):
                    self.line[e.channel].append(n)
        self.until_read: dict[int, list[int]] = {}
        """What a queue does before the first launch that reads a value; nothing when none does."""
        for n, sent in enumerate(program.events):
            if isinstance(sent, Send):
                readers = [k for k, e in enumerate(program.events) if isinstance(e, Launch) and n in e.moved]
                self.until_read[n] = min((before[k] for k in readers), key=len, default=[])

    def done(self, state: tuple[int, ...]) -> set[int]:
        return {n for order, count in zip(self.program.orders, state, strict=True) for n in order[:count]}

    def received(self, channel: int, done: set[int]) -> list[int]:
        """The values that have been taken out of a channel, in the order of sending."""
        taken: list[int] = []
        for n in self.line[channel]:
            if n not in done or not done.issuperset(self.until_read[n]):
                break
            taken.append(n)
        return taken

    def can_run(self, n: int, done: set[int]) -> bool:
        e = self.program.events[n]
        if isinstance(e, Send):
            inside = len(done.intersection(self.line[e.channel])) - len(self.received(e.channel, done))
            return (e.value is None or e.value in done) and inside < self.program.channels[e.channel][2]
        here = {sent for channel in range(len(self.line)) for sent in self.received(channel, done)}
        return done.issuperset(e.local) and here.issuperset(e.moved)

    def successors(self, state: tuple[int, ...]) -> list[tuple[int, ...]]:
        done = self.done(state)
        return [
            (*state[:q], count + 1, *state[q + 1 :])
            for q, (order, count) in enumerate(zip(self.program.orders, state, strict=True))
            if count < len(order) and self.can_run(order[count], done)
        ]

    def outcomes(self) -> set[bool]:
        """Returns whether runs end (True) or get stuck (False), over all interleavings."""
        start = (0,) * len(self.program.orders)
        end = tuple(map(len, self.program.orders))
        seen, pending, found = {start}, [start], set()
        while pending:
            state = pending.pop()
            following = self.successors(state)
            if not following:
                found.add(state == end)
            pending += set(following) - seen
            seen.update(following)
        return found


def proved_order(program: Program) -> list[int] | None:
    """The order that the proof finds, None when it finds a cycle."""
    module = ir.Module.parse(text_of(program), CONTEXT)
    events = orders.events_of(read_program(module))
    numbers = [n for n, e in enumerate(events) if e.kind != "receipt"]
    try:
        order = orders.proved_order(events)
    except orders.DeadlockError:
        return None
    return [numbers.index(n) for n in order if events[n].kind != "receipt"]


@settings(max_examples=examples(150), deadline=None)
@given(programs())
def test_proved_order_exists_where_runs_end(program: Program):
    (ends,) = Interpreter(program).outcomes()
    event(f"ends: {ends}")
    assert (proved_order(program) is not None) == ends


@settings(max_examples=examples(80), deadline=None)
@given(programs())
def test_proved_order_runs_without_waiting(program: Program):
    order = proved_order(program)
    assume(order is not None)
    interpreter = Interpreter(program)
    done: set[int] = set()
    for n in order or []:
        assert interpreter.can_run(n, done)
        done.add(n)
