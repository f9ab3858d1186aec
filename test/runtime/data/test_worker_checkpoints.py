"""Checkpoints that a worker writes: when it reports an error, no write is in flight."""

from __future__ import annotations

import types

import numpy as np
import pytest

from pathways.runtime.data import array_files, checkpoints


class Future:
    """Future of a tensorstore that ends when it is waited for."""

    def __init__(self, outcome: object) -> None:
        self.outcome = outcome
        self.has_ended = False

    def result(self) -> object:
        self.has_ended = True
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def exception(self) -> Exception | None:
        self.has_ended = True
        return self.outcome if isinstance(self.outcome, Exception) else None


class Tensorstore:
    """Fake tensorstore; the operation that a spec names as `fails` fails."""

    def __init__(self) -> None:
        self.futures: list[Future] = []

    def Context(self, settings: object) -> object:
        return settings

    def open(self, spec: dict[str, str], **_: object) -> Future:
        if spec.get("fails") == "at once":
            raise ValueError("no such driver")
        return self._begun(OSError("cannot open") if spec.get("fails") == "open" else _Store(self, spec))

    def _begun(self, outcome: object) -> Future:
        self.futures.append(Future(outcome))
        return self.futures[-1]


class _Store:
    def __init__(self, tensorstore: Tensorstore, spec: dict[str, str]) -> None:
        self._tensorstore, self._spec = tensorstore, spec

    def __getitem__(self, index: object) -> object:
        outcome = OSError("cannot write") if self._spec.get("fails") == "write" else None
        return types.SimpleNamespace(write=lambda data, **_: self._tensorstore._begun(outcome))


@pytest.mark.parametrize("fails", ["at once", "open", "write"])
@pytest.mark.parametrize("where", [0, 1, 3])
def test_worker_checkpoints_end_writes_before_an_error(monkeypatch, fails, where):
    tensorstore = Tensorstore()
    monkeypatch.setattr(array_files, "load_tensorstore", lambda: tensorstore)
    leaves = [{"spec": {"fails": fails} if n == where else {}, "pieces": [(n, (0,))]} for n in range(4)]
    with pytest.raises((OSError, ValueError)):
        checkpoints._write_all(leaves, [np.zeros(4)] * 4, {})
    assert all(future.has_ended for future in tensorstore.futures)
    assert len(tensorstore.futures) >= where
