"""Random histories of simulated clusters: each seed determines one."""

from __future__ import annotations

import dataclasses
import random

from simulated_cluster import ClusterShape
from simulated_histories import SECONDS, Act, History

from pathways.runtime.control.core import Limits
from pathways.runtime.simulate.events import LinkQuality

_CUT = ("cut off", "cut peers", "isolate")
_WRONG = ("kill", "stop", *_CUT, "false report", "leave", "fail", "slow", "fail start", "sleep", "late")
_CALM = ("leave", "slow", "sleep")


def random_history(seed: int) -> History:
    """Returns a history of a cluster of one to four islands."""
    chance = random.Random(f"{seed} history")
    is_calm = chance.random() < 0.2
    is_lossy = not is_calm and chance.random() < 0.3
    shape = _shape(chance, seed, is_calm=is_calm, is_lossy=is_lossy)
    acts = _uses(chance)
    wrong = [*(_CALM if is_calm else _WRONG)]
    if not is_calm and shape.limits.step_deadline is not None:
        wrong.append("hang")
    # Few kinds at a time, so that interactions of two are not hidden by the others.
    kinds = chance.sample(wrong, chance.randint(1, min(4, len(wrong))))
    for _ in range(chance.randint(0, 7)):
        acts.append(_wrong(chance, chance.choice(kinds), is_calm=is_calm))
    if not is_calm and chance.random() < 0.3:
        acts += _failure_that_spreads(chance, shape)
    if chance.random() < 0.1:
        acts.append(Act(chance.uniform(1, SECONDS), "close"))
    acts += _calls(random.Random(f"{seed} calls"), [act.at for act in acts])
    sharing = random.Random(f"{seed} sharing")
    if sharing.random() < 0.4:
        shape = dataclasses.replace(shape, sessions=sharing.randint(1, 4))
        for _ in range(sharing.choice((0, 0, 1, 2))):
            acts.append(Act(sharing.uniform(0, SECONDS), "leave session", (sharing.getrandbits(16),)))
    if shape.sessions and seed % 3 == 0:
        acts += _drains(random.Random(f"{seed} drains"))
    joining = random.Random(f"{seed} joins")
    if joining.random() < 0.5:
        for _ in range(joining.randint(1, 2)):
            acts.append(Act(joining.uniform(0, SECONDS), "join", (joining.choice((1, 2, 2, 3)),)))
    return History(shape, tuple(sorted(acts, key=lambda act: act.at)), is_calm)


def _shape(chance: random.Random, seed: int, *, is_calm: bool, is_lossy: bool) -> ClusterShape:
    islands = tuple(chance.choice((1, 1, 2, 3)) for _ in range(chance.randint(1, 4)))
    limits = Limits(
        ahead=chance.randint(1, 4),
        heartbeat=2.0,
        grace=60.0 if is_calm else chance.choice((0.3, 3.0)),
        stall_report=chance.choice((None, 1.0)),
        step_deadline=3.0 if is_lossy or (not is_calm and chance.random() < 0.3) else None,
        restart_seconds=chance.choice((0.0, 5.0, 60.0, 60.0)),
    )
    longest = 0.3 if is_calm else chance.choice((0.01, 0.1, 0.1, 0.5, 1.2))
    steps, arrays = (LinkQuality(0.001, chance.choice((0.01, longest))) for _ in range(2))
    watch = LinkQuality(0.001, longest, is_ordered=chance.random() < 0.5)
    if is_lossy:
        watch = LinkQuality(0.001, longest, loss=0.1, duplication=0.2, is_ordered=False)
    count = sum(islands)
    late = {} if is_calm else {chance.randrange(count): 0.9 for _ in range(chance.choice((0, 0, 1, 2)))}
    return ClusterShape(islands, limits, {"steps": steps, "arrays": arrays, "watch": watch}, late, seed)


def _uses(chance: random.Random) -> list[Act]:
    """Returns actions of clients: some at random times, some in quick succession."""
    acts = []
    for _ in range(chance.randint(3, 12)):
        at = chance.uniform(0, SECONDS)
        for _ in range(chance.choice((1, 1, 3, 8))):
            acts.append(_use(chance, at))
            at += chance.uniform(0, 0.05)
    return acts


def _failure_that_spreads(chance: random.Random, shape: ClusterShape) -> list[Act]:
    """Returns a failure of a host, with steps on its island and others before the failure is known."""
    islands = range(len(shape.islands))
    host = chance.choice([*shape.late] or range(sum(shape.islands)))
    first = next(island for island in islands if host in shape.hosts(island))
    at = chance.uniform(0, SECONDS)
    acts = [Act(at, "fail", (host, 1))]
    more = [chance.choice(islands) for _ in range(2)]
    for route in ([first], [first, more[0]], [more[0]], [more[0], more[1]], [more[1]]):
        at += chance.uniform(0, 0.02)
        # No results of the failing host: it knows itself that they are wrong.
        picks = () if first in route else (0, 3)
        acts.append(Act(at, "run", (chance.getrandbits(16), 1, len(picks), *picks, *route)))
    return acts


def _use(chance: random.Random, at: float) -> Act:
    what = chance.choices(("run", "fetch", "drop", "status"), (6, 2, 3, 0.5))[0]
    on: tuple[int, ...] = (chance.getrandbits(16), chance.getrandbits(16))
    if what == "run":
        picks = [chance.getrandbits(16) for _ in range(chance.randint(0, 4))]
        route = [chance.getrandbits(16) for _ in range(chance.randint(1, 4))]
        on = (chance.getrandbits(16), chance.randint(1, 2), len(picks), *picks, *route)
    return Act(at, what, on)


def _calls(chance: random.Random, times: list[float]) -> list[Act]:
    """Returns calls of functions right after other events, or at any time."""
    acts = []
    for _ in range(chance.randint(0, 5)):
        at = chance.choice([*times, chance.uniform(0, SECONDS)]) + chance.uniform(0, 0.05)
        on = tuple(chance.getrandbits(16) for _ in range(2 + chance.randint(0, 2)))
        acts.append(Act(at, "call", on, chance.choice((0.0, 0.01, 0.5, 3.0))))
    return acts


def _drains(chance: random.Random) -> list[Act]:
    """Returns drains of islands, with steps in quick succession before; some islands return."""
    acts = []
    for _ in range(chance.choice((0, 0, 1, 1, 2, 4))):
        at, island = chance.uniform(0, SECONDS), chance.getrandbits(16)
        acts.append(Act(at, "drain", (island,), chance.choice((0.0, 0.2, 5.0, 60.0))))
        begin = max(0.0, at - 0.3)
        for _ in range(chance.choice((0, 8, 16))):
            acts.append(_use(chance, chance.uniform(begin, at + 0.3)))
        if chance.random() < 0.6:
            acts.append(Act(at + chance.uniform(0, 6), "return", (island,)))
    return acts


def _wrong(chance: random.Random, what: str, *, is_calm: bool) -> Act:
    at = chance.uniform(0, SECONDS)
    on = (chance.getrandbits(16), chance.getrandbits(16))
    longest = 1.0 if is_calm and what == "slow" else 6.0
    if what in _CUT:
        longest = chance.choice((6.0, 6.0, 20.0, 40.0))
    lasts = what in ("stop", *_CUT, "slow", "sleep")
    return Act(at, what, on, chance.uniform(0.1, longest) if lasts else 0.0)
