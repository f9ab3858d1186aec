"""Random orders of pipelines, and whether they can run, by running them action by action.

The module is independent of the compiler, whose verdict is compared with this one.
"""

from __future__ import annotations

import dataclasses
import random
import re

Action = tuple[int, str, int]
"""Stage, kind and microbatch of an action."""


@dataclasses.dataclass(frozen=True)
class Line:
    """Pipeline.

    Attributes:
      owners: the number of the slice of each stage; every slice up to the largest number has one.
      reads: for each stage, the earlier stages whose forwards it reads.
      count: the number of microbatches.
      trained: the first stage with a backward; the number of stages for none.
      split: whether backwards are two halves.
      weight_first: whether the first backward has only a W half, since no stage waits for the other, as in
        real programs.
    """

    owners: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    count: int
    trained: int
    split: bool = False
    weight_first: bool = False

    @property
    def width(self) -> int:
        return max(self.owners) + 1

    def needs(self) -> dict[Action, set[Action]]:
        """Returns every action, with the actions whose results it reads."""
        needs: dict[Action, set[Action]] = {}
        last = "I" if self.split else "B"
        for m in range(self.count):
            for stage, read in enumerate(self.reads):
                needs[stage, "F", m] = {(other, "F", m) for other in read}
                if stage < self.trained:
                    continue
                behind = [other for other, read in enumerate(self.reads) if stage in read]
                first = {(stage, "F", m), *((other, last, m) for other in behind)}
                if self.weight_first and stage == self.trained:
                    needs[stage, "W", m] = first
                    continue
                needs[stage, last, m] = first
                if self.split:
                    needs[stage, "W", m] = {(stage, "F", m), (stage, "I", m)}
        return needs


@dataclasses.dataclass(frozen=True)
class ScheduleCase:
    """Pipeline with the text of a schedule file and its faults.

    Attributes:
      line: the pipeline.
      text: the file.
      faults: the kinds of mistakes; None if the text was changed so that only the compiler can find them.
    """

    line: Line
    text: bytes
    faults: frozenset[str] | None


def random_line(rng: random.Random, largest: int = 5) -> Line:
    """Returns a pipeline that schedule files support."""
    width = rng.randint(1, min(4, largest))
    owners = list(range(width)) + [rng.randrange(width) for _ in range(rng.randint(0, largest - width))]
    if rng.random() < 0.3:
        rng.shuffle(owners)
    reads = [()]
    for stage in range(1, len(owners)):
        also = {stage - 1} | {rng.randrange(stage) for _ in range(rng.choice([0, 0, 0, 1, 2]))}
        reads.append(tuple(sorted(also)))
    trained = rng.choice([0, 0, 0, len(owners), rng.randint(0, len(owners))])
    count, split = rng.randint(1, 4), rng.random() < 0.3
    return Line(tuple(owners), tuple(reads), count, trained, split, split and rng.random() < 0.6)


def random_case(rng: random.Random, line: Line) -> ScheduleCase:
    """Returns an order for a pipeline that may or may not run, or a text that is no schedule file."""
    rows = _rows(rng, line)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        _spoil(rng, line, rows)
    faults = faults_of(line, rows)
    text = _written(rng, rows)
    if rng.random() > 0.12:
        return ScheduleCase(line, text, faults)
    changed = bytearray(text)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(changed) + 1)
        changed[place : place + rng.choice([0, 1])] = rng.choice(
            [b'"', b"\0", b"\xff", b",", b"\n", b"\r", b"9", b"F"]
        )
    return ScheduleCase(line, bytes(changed), None)


def _rows(rng: random.Random, line: Line) -> list[list[str]]:
    """Returns the actions of each slice, in an order that is right, nearly right or random."""
    needs = line.needs()
    noise = rng.choice([0.0, 0.0, 1.0, 3.0, 100.0])
    priority = {action: rng.random() * rng.choice([1, 4, 16]) for action in needs}
    time: dict[Action, float] = {}
    while len(time) < len(needs):
        ready = [a for a in needs if a not in time and needs[a] <= time.keys()]
        time[min(ready, key=lambda a: (priority[a], a))] = len(time)
    order = sorted(needs, key=lambda action: (time[action] + noise * rng.random(), action))
    rows: list[list[str]] = [[] for _ in range(line.width)]
    for stage, kind, m in order:
        rows[line.owners[stage]].append(f"{stage}{kind}{m}")
    if line.split and rng.random() < 0.5:
        # One word stands for both halves.
        for row in rows:
            cells = [cell.replace("I", "B") for cell in row]
            row[:] = [cell.replace("W", "B") for cell in cells if cell.replace("W", "B") not in cells]
    return rows


def _spoil(rng: random.Random, line: Line, rows: list[list[str]]) -> None:
    row = rng.choice(rows)
    place = rng.randint(0, len(row))
    stages, count = len(line.owners), line.count
    kind = rng.choice("FBIW")
    other = f"{rng.randrange(stages + 1)}{kind}{rng.randrange(count + 1)}"
    match rng.randrange(7):
        case 0 if row:
            row.pop(place - 1)
        case 1 if row:
            row.insert(place, rng.choice(row))
        case 2 if row:
            rng.choice(rows).append(row.pop(place - 1))
        case 3:
            row.insert(place, other)
        case 4:
            words = (
                "F0",
                "0f0",
                "0F",
                "0X0",
                "0F-1",
                "0F0F0",
                "0SEND_F0",
                "0RECV_B1",
                "-",
                "0F0.0",
                "٣F0",
                "9" * 30,
            )
            row.insert(place, rng.choice(words))
        case 5 if len(row) > 1:
            a, b = rng.sample(range(len(row)), 2)
            row[a], row[b] = row[b], row[a]
        case 6:
            if rng.random() < 0.5:
                rows.append([other])
            elif len(rows) > 1:
                rows.remove(row)


def _written(rng: random.Random, rows: list[list[str]]) -> bytes:
    """Returns the text of a file, with ignored characters in it."""
    end = rng.choice(["\n", "\n", "\r\n"])
    layout = rng.random() < 0.4

    def cell(text: str) -> str:
        if not layout:
            return text
        text = rng.choice(["", "", "", " "]) + text + rng.choice(["", "", " "])
        text = f'"{text}"' if rng.random() < 0.2 else text
        return rng.choice(["", "", ",", ",,"]) + text + rng.choice(["", "", ","])

    lines = [",".join(map(cell, row)) for row in rows]
    extra = end * rng.choice([0, 0, 2]) if layout else ""
    mark = "\ufeff" if rng.random() < 0.1 else ""
    return (mark + end.join(lines) + end + extra).encode()


def faults_of(line: Line, rows: list[list[str]]) -> frozenset[str]:
    """Returns the faults of an order; none if it can run."""
    needs = line.needs()
    faults: set[str] = set()
    rows = list(rows)
    while rows and not rows[-1]:
        rows.pop()
    if len(rows) != line.width:
        faults.add("rows")
    queues: list[list[Action]] = []
    seen: set[Action] = set()
    claimed: set[Action] = set()
    for number, row in enumerate(rows):
        queues.append([])
        for cell in row:
            read = re.fullmatch("([0-9]{1,9})([FBIW])([0-9]{1,9})", cell)
            if read is None:
                faults.add("malformed")
                continue
            stage, kind, m = int(read[1]), read[2], int(read[3])
            kinds = "IW" if line.split and kind == "B" else kind
            claims = [(stage, k, m) for k in kinds]
            if line.weight_first and stage == line.trained < len(line.owners) and m < line.count:
                actions = [(stage, k, m) for k in kinds if k != "I"]
            else:
                actions = claims
            if stage < len(line.owners) and line.owners[stage] != number:
                faults.add("misplaced")
            if not all(action in needs for action in actions):
                faults.add("unknown")
                continue
            if not claimed.isdisjoint(claims):
                faults.add("doubled")
            claimed.update(claims)
            seen.update(actions)
            queues[-1] += actions
    if seen != needs.keys():
        faults.add("missing")
    if not _ends(queues, needs):
        faults.add("order")
    return frozenset(faults)


def _ends(queues: list[list[Action]], needs: dict[Action, set[Action]]) -> bool:
    """Returns whether all slices reach the end of their queues, if each continues as soon as it can."""
    position = [0] * len(queues)
    done: set[Action] = set()
    moved = True
    while moved:
        moved = False
        for n, queue in enumerate(queues):
            while position[n] < len(queue) and needs[queue[position[n]]] <= done:
                done.add(queue[position[n]])
                position[n] += 1
                moved = True
    return all(at == len(queue) for at, queue in zip(position, queues, strict=True))


def text_of(line: Line) -> str:
    """Returns the pipeline as an unrolled module."""
    text = ["!x = tensor<4xf32>", 'sdy.mesh @mesh = <["x"=1]>']
    text += [f'"pw.slice"() {{sym_name = "s{s}", mesh = @mesh}} : () -> ()' for s in range(line.width)]
    text.append(f'"pw.loop"() {{sym_name = "l", count = {line.count} : i64}} : () -> ()')
    arguments = ", ".join(f"%x{s}: !x {{pw.slice = @s{s}}}" for s in range(line.width))
    results, done, moved = [], set[Action](), set[str]()
    body: list[str] = []
    needs = line.needs()
    while len(done) < len(needs):
        action = min(a for a in needs if a not in done and needs[a] <= done)
        done.add(action)
        stage, kind, m = action
        place = line.owners[stage]
        read = [f"%x{place}"]
        for other in sorted(needs[action]):
            value, source = "%v{}{}{}".format(*other), line.owners[other[0]]
            if source != place and f"{value}_{place}" not in moved:
                moved.add(f"{value}_{place}")
                body.append(
                    f'{value}_{place} = "pw.transfer"({value}) {{loop = @l, microbatch = {m}, '
                    f"slice = @s{place}}} : (!x) -> !x"
                )
            read.append(value if source == place else f"{value}_{place}")
        part = {"I": ', part = "input"', "W": ', part = "weight"'}.get(kind, "")
        origin = f'{{kind = "{"fwd" if kind == "F" else "bwd"}", stage = {stage}, microbatch = {m}{part}}}'
        body.append(
            f'%v{stage}{kind}{m} = "pw.launch"({", ".join(read)}) {{callee = @f{len(read)}, loop = @l, '
            f"microbatch = {m}, slice = @s{place}, origins = [{origin}]}} "
            f": ({', '.join(['!x'] * len(read))}) -> !x"
        )
        if not any(action in each for each in needs.values()):
            results.append((f"%v{stage}{kind}{m}", place))
    types = ", ".join(f"!x {{pw.slice = @s{place}}}" for _, place in results)
    text.append(f"func.func @main({arguments}) -> ({types}) {{")
    text += body
    text.append(f"return {', '.join(v for v, _ in results)} : {', '.join(['!x'] * len(results))}\n}}")
    text += [f"func.func private @f{n}({', '.join(['!x'] * n)}) -> !x" for n in range(1, 12)]
    return "\n".join(text)
