"""State of training and the attempts at steps, which may fail after they have changed it."""

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
      step: the number of issued steps.
      value: the state after them; None while a version is restored.
      is_held: whether no step may be issued now.
      has_ended: whether the source has ended.
      failure: the error of a step or its batch, until the metrics of earlier steps are yielded.
      is_begun: whether an attempt at a step is in progress or has failed.
      problem: the reason why the state or its metrics cannot be used; None while they can.
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
        # The state at the start of the attempt.
        self._before: tuple[list[Any], Any] | None = None

    def begin(self) -> None:
        """Notes the start of an attempt at a step."""
        if self._is_function:
            # A function may change containers of the state before it raises.
            self._before = jax.tree.flatten(self.value)
        self.is_begun = True

    def end(self, value: Any) -> None:
        """Replaces the state by the one after the issued step."""
        self.value, self.is_begun, self._before = value, False, None

    def mend(self) -> None:
        """Sets the state back to before a failed step; notes a problem if the step has changed it."""
        if self._before is not None:
            leaves, tree = self._before
            self.value = tree.unflatten(leaves)
        if self.is_begun and any(map(self._may_have_changed, jax.tree.leaves(self.value))):
            self.problem = f"step {self.step} failed after it had taken over the state"
        self.is_begun, self._before = False, None

    def raise_failure(self) -> None:
        """Raises the pending error of a step or its batch, once."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def take_problem(self) -> str | None:
        """Returns the problem of the state, once."""
        problem, self.problem = self.problem, None
        return problem

    def drop(self) -> None:
        """Drops the state, before a version is restored."""
        # The failed step runs again after the restore.
        self.failure, self.problem = None, None
        self.value, self.is_begun, self._before = None, False, None

    def _may_have_changed(self, leaf: Any) -> bool:
        """Returns whether a failed step has donated a leaf, or may have written to it."""
        if isinstance(leaf, jax.Array | Array):
            return leaf.is_deleted()
        return self._is_function and isinstance(leaf, np.ndarray)
