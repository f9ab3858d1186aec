"""Orders of small graphs."""

from __future__ import annotations

from pathways.dialect.relations.graphs import depth_first


def test_depth_first_puts_needs_right_before_their_root() -> None:
    needs = {"a": [], "b": ["late"], "c": ["a", "late"], "late": ["later"], "later": [], "d": ["a"]}
    assert list(depth_first("abcd", needs.__getitem__)) == ["a", "later", "late", "b", "c", "d"]


def test_depth_first_visits_only_needs_of_its_roots() -> None:
    needs = {1: [2, 3], 2: [4], 3: [4], 4: [], 5: [1]}
    assert set(depth_first([1], needs.__getitem__)) == {1, 2, 3, 4}
