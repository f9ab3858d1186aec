"""Plays random histories of simulated clusters with the cores, and shows the shortest that goes wrong.

.venv/bin/python test/runtime/control/histories.py --count 10000
.venv/bin/python test/runtime/control/histories.py --first 123 --count 1 -v
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from random_histories import random_history
from simulated_histories import History, HistoryPlayer

from pathways.runtime.control.effects import PingGang
from pathways.runtime.control.records.events import Tick


def problem(history: History) -> str | None:
    """Returns the problem of a history; None when there is none."""
    return _problem(HistoryPlayer(history))


def _problem(player: HistoryPlayer) -> str | None:
    try:
        player.play()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def shrunk(history: History, attempts: int = 400) -> History:
    """Returns a history that still fails with few acts: removes them in blocks, down to single ones."""
    size = max(1, len(history.acts) // 2)
    while True:
        begin = 0
        has_changed = False
        while begin < len(history.acts) and attempts:
            attempts -= 1
            fewer = dataclasses.replace(history, acts=history.acts[:begin] + history.acts[begin + size :])
            if problem(fewer) is not None:
                history, has_changed = fewer, True
            else:
                begin += size
        if not attempts or (size == 1 and not has_changed):
            return history
        size = max(1, size // 2)


def describe(history: History, *, with_events: bool = True) -> str:
    """Returns a history as text: its acts, the events and effects of the core, and the problem."""
    player = HistoryPlayer(history)
    wrong = _problem(player)
    shape = history.shape
    lines = [f"islands of {', '.join(map(str, shape.islands))} hosts, {shape.limits}"]
    lines += [f"{channel}: {quality}" for channel, quality in shape.links.items()]
    lines += ["what is done:", *(f"  {act}" for act in history.acts)]
    if with_events:
        lines.append("events and effects of the core:")
        for at, event, effects in player.cluster.handled:
            shown = [effect for effect in effects if not isinstance(effect, PingGang)]
            if shown or not isinstance(event, Tick):
                lines.append(f"  {at:6.2f} {event}")
                lines += [f"           -> {effect}" for effect in shown]
    return "\n".join([*lines, f"what is wrong: {wrong}"])


def failing(first: int, count: int) -> tuple[int, str] | None:
    """Returns the first of some seeds whose history fails, and that history, shrunk."""
    for seed in range(first, first + count):
        history = random_history(seed)
        if problem(history) is not None:
            return seed, describe(shrunk(history))
    return None


def main() -> int:
    """Plays histories; returns 1 when one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--count", type=int, default=500, metavar="N", help="how many seeds")
    parser.add_argument("-v", "--verbose", action="store_true", help="also show what does not go wrong")
    arguments = parser.parse_args()
    began = time.process_time()
    outcomes: collections.Counter[str] = collections.Counter()
    simulated = 0.0
    for seed in range(arguments.first, arguments.first + arguments.count):
        player = HistoryPlayer(random_history(seed))
        if _problem(player) is not None:
            print(f"seed {seed}\n{describe(shrunk(player.history))}")
            return 1
        if arguments.verbose:
            print(f"seed {seed}\n{describe(player.history)}")
        outcomes += player.clients.outcomes
        outcomes["steps"] += len(player.clients.verdicts)
        outcomes["islands lost"] += sum("is lost" in text for _, text in player.cluster.logged)
        outcomes["islands left"] += sum("has left" in text for _, text in player.cluster.logged)
        simulated += player.cluster.time.now
    seconds = time.process_time() - began
    print(f"{arguments.count} histories of {simulated / 3600:.1f} hours in {seconds:.1f} s of CPU: all right")
    print(", ".join(f"{count} {what}" for what, count in outcomes.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
