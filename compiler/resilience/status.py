"""Status of a run of training that goes on by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pathways.runtime.timelines.tables import size


@dataclasses.dataclass(frozen=True)
class TrainingStatus:
    """Status of a run; `print` shows it in a few lines.

    Attributes:
      step: how many steps were issued.
      version: the step of the last committed version in memory; None where there is none.
      age: the seconds since it was committed; None where an earlier process has committed it.
      islands: the bytes of all versions in the memory of each island, by its name.
      disk: the step of the last version on disk; None where there is none.
      losses: how many losses of islands were survived.
      replicas: the number of replicas that run; None where it cannot change.
      protected: whether any one island may be lost with its memory.
    """

    step: int
    version: int | None
    age: float | None
    islands: Mapping[str, int]
    disk: int | None
    losses: int
    replicas: int | None
    protected: bool

    def __str__(self) -> str:
        age = "" if self.age is None else f", {self.age:.1f} s old"
        version = "no version in memory" if self.version is None else f"version {self.version}{age}"
        disk = "none" if self.disk is None else f"version {self.disk}"
        protected = "protected" if self.protected else "not protected"
        memory = ", ".join(f"{name} {size(count)}" for name, count in self.islands.items())
        replicas = "" if self.replicas is None else f"; replicas: {self.replicas}"
        return (
            f"step {self.step}: {version}, {protected}{replicas}; losses survived: {self.losses}\n"
            f"  memory: {memory}\n  disk: {disk}"
        )
