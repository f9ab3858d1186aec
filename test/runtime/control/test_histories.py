"""Random histories of clusters: only the cores are real."""

from __future__ import annotations

from histories import describe, failing, problem, shrunk
from random_histories import random_history
from simulated_histories import ACTS, Act, HistoryPlayer

from examples import examples

HISTORIES = examples(160)


def test_histories_end_each_step_once_and_show_no_wrong_value():
    """To play one: `python test/runtime/control/histories.py --first SEED --count 1 -v`."""
    found = failing(0, HISTORIES)
    assert found is None, f"seed {found[0]}\n{found[1]}"


def test_histories_of_one_seed_are_the_same():
    assert [describe(random_history(seed)) for seed in range(5)] == [
        describe(random_history(seed)) for seed in range(5)
    ]


def test_histories_that_go_wrong_are_shrunk(monkeypatch):
    def refuse(player: HistoryPlayer, act: Act) -> None:
        raise AssertionError("a worker is killed")

    monkeypatch.setitem(ACTS, "kill", refuse)
    history = next(
        history
        for history in map(random_history, range(100))
        if len(history.acts) > 20 and problem(history) is not None
    )
    smallest = shrunk(history)
    assert [act.what for act in smallest.acts] == ["kill"]
    assert describe(smallest).endswith("what is wrong: AssertionError: a worker is killed")
