"""Copies of arrays on other slices, as long as the arrays live."""

from __future__ import annotations

from collections.abc import Iterator

from pathways.compiler.backends.mirrors import Mirrors


class FakeArray:
    """An object that can be referred to weakly."""


class FreeingCopies(list):
    """Copies whose reading frees an array, as the garbage collector may at any time."""

    def __init__(self, arrays: list[FakeArray]) -> None:
        super().__init__()
        self._arrays = arrays

    def __iter__(self) -> Iterator[FakeArray]:
        self._arrays.clear()
        return super().__iter__()


def test_mirrors_may_lose_an_array_while_another_one_is_added() -> None:
    mirrors = Mirrors()
    arrays = [FakeArray()]
    mirrors.add(arrays[0], [])
    kept = FakeArray()
    mirrors.add(kept, FreeingCopies(arrays))
    assert mirrors.find(kept, []) == ()
    assert len(mirrors._copies) == 1
