"""State of training, while steps are tried with it, some of them in vain."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pathways.runtime.hosts.client.array import Array


class Training:
    """State of training, and the steps that were issued.

    Args:
      value: the first state.
      is_function: whether steps are any function, which may change containers and NumPy arrays in place.

    Attributes:
      step: how many steps were issued.
      value: the state after them; None while a version of it is restored.
      is_held: whether no step may be issued now.
      has_ended: whether the source has no batch left.
      failure: the error of a step or its batch, until the metrics of the steps before were given.
      is_begun: whether a step was begun with it that was not issued.
      problem: why it cannot be used, or metrics of it; None while they can.
    """

    def __init__(self, value: Any, *, is_function: bool) -> None:
        self.step = 0
        self.value = value
        self.is_held = True
        self.has_ended = False
        self.failure: Exception | None = None
        self.is_begun = False
        self.problem: str | None = None
        self._is_function = is_function
        # The state as it was when the step was begun.
        self._before: tuple[list[Any], Any] | None = None

    def begin(self) -> None:
        """Notes that a step is tried with the state."""
        if self._is_function:
            # It may change containers of the state in place before it raises.
            self._before = jax.tree.flatten(self.value)
        self.is_begun = True

    def end(self, value: Any) -> None:
        """Replaces the state by that after the step, which was issued."""
        self.value, self.is_begun, self._before = value, False, None

    def mend(self) -> None:
        """Makes the state that before a step that failed; notes a problem where that is impossible."""
        if self._before is not None:
            leaves, tree = self._before
            self.value = tree.unflatten(leaves)
        if self.is_begun and any(map(self._may_have_changed, jax.tree.leaves(self.value))):
            self.problem = f"step {self.step} failed after it had taken over the state"
        self.is_begun, self._before = False, None

    def raise_failure(self) -> None:
        """Raises the error of a step or its batch, if there is one, once."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def take_problem(self) -> str | None:
        """Returns why the state cannot be used, once."""
        problem, self.problem = self.problem, None
        return problem

    def drop(self) -> None:
        """Drops the state; a version of it is restored next."""
        # A step that failed is run again with those before it.
        self.failure, self.problem = None, None
        self.value, self.is_begun, self._before = None, False, None

    def _may_have_changed(self, leaf: Any) -> bool:
        """Returns whether a step that failed has donated a leaf, or may have written to it."""
        if isinstance(leaf, jax.Array | Array):
            return leaf.is_deleted()
        return self._is_function and isinstance(leaf, np.ndarray)
