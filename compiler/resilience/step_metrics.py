"""Metrics of issued steps, until the body of the loop gets them."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import jax
import numpy as np

from pathways.compiler.resilience.store import SnapshotStore
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.protocol.interrupts import uninterrupted


@dataclasses.dataclass(frozen=True)
class _IssuedStep:
    """Issued step with unread metrics, `leaves` and `tree`."""

    number: int
    leaves: list[Any]
    tree: Any


class StepMetrics:
    """Metrics of steps, read in order, each once.

    Steps are issued ahead, so a step may donate the state of the previous step before its metrics are read.
    Metrics that share memory with the state are therefore detached from it.

    Args:
      store: the store, which reads and detaches metrics.

    Attributes:
      read_steps: the number of steps with read metrics.
      ready: the numbers and metrics of steps that the body of the loop has yet to get.
    """

    def __init__(self, store: SnapshotStore) -> None:
        self.read_steps = 0
        self.ready: collections.deque[tuple[int, Any]] = collections.deque()
        self._store = store
        self._in_flight: collections.deque[_IssuedStep] = collections.deque()
        # The positions of leaves that share memory with the state, by the structure of metrics.
        self._shared: dict[Any, set[int]] = {}

    @property
    def given_steps(self) -> int:
        """Number of steps whose metrics the body of the loop has."""
        return self.read_steps - len(self.ready)

    @property
    def in_flight(self) -> int:
        """Number of issued steps with unread metrics."""
        return len(self._in_flight)

    @property
    def arrays(self) -> list[Any]:
        """The leaves of unread metrics."""
        # A copy: the thread of the run changes the deque.
        return [leaf for step in [*self._in_flight] for leaf in step.leaves]

    def detach(self, metrics: Any, state: Any) -> tuple[list[Any], Any]:
        """Returns the leaves and structure of metrics, with copies of arrays that the next step may donate.

        Args:
          state: the state after the step.

        Raises:
          ValueError: the step itself donated one of the arrays.
        """
        leaves, tree = jax.tree.flatten(metrics)
        if (shared := self._shared.get(tree)) is None:
            # Programs return new arrays, so the same leaves share memory with the state in each step.
            of_state = {id(leaf) for leaf in jax.tree.leaves(state)}
            shared = self._shared[tree] = {n for n, leaf in enumerate(leaves) if id(leaf) in of_state}
        for n, leaf in enumerate(leaves):
            if _is_deleted(leaf):
                path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(metrics)[0][n][0])
                raise ValueError(
                    f"pw.resilient: metrics{path} has been deleted: a program of the step has donated it; "
                    "return a copy"
                )
            if isinstance(leaf, np.ndarray):
                # It may be a view of the state, which a step may write to.
                if n in shared or leaf.base is not None:
                    leaves[n] = leaf.copy()
            elif n in shared and isinstance(leaf, Array | jax.Array):
                leaves[n] = self._store.detach(leaf)
        return leaves, tree

    def add(self, number: int, leaves: list[Any], tree: Any) -> None:
        """Adds the metrics of a step; see `detach`."""
        self._in_flight.append(_IssuedStep(number, leaves, tree))

    @property
    def next_step(self) -> int:
        """Number of the first step in flight."""
        return self._in_flight[0].number

    def find_donated(self) -> bool:
        """Returns whether a later step has donated unread metrics; such leaves are detached from then on."""
        donated = [
            (step, n) for step in self._in_flight for n, leaf in enumerate(step.leaves) if _is_deleted(leaf)
        ]
        for step, n in donated:
            self._shared[step.tree].add(n)
        return bool(donated)

    def read(self) -> int:
        """Reads the metrics of the first step in flight; returns the number of steps with read metrics.

        Raises:
          Exception: its computation failed, or an island is lost.
        """
        first = self._in_flight[0]
        metrics = self._store.read(jax.tree.unflatten(first.tree, first.leaves))
        with uninterrupted():
            self._in_flight.popleft()
            # The body of the loop gets each number once, also if the step ran again after a loss.
            if first.number == self.read_steps:
                self.ready.append((first.number, metrics))
                self.read_steps += 1
        return first.number + 1

    def drop_unread(self) -> None:
        """Drops the metrics of steps in flight."""
        self._in_flight.clear()


def _is_deleted(leaf: Any) -> bool:
    return isinstance(leaf, Array | jax.Array) and leaf.is_deleted()
