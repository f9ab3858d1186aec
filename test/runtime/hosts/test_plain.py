"""Plain values and trees of arrays survive a round trip; other values are refused with their place."""

from __future__ import annotations

import enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways.runtime.hosts.protocol import plain

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
TREES = st.recursive(
    st.none() | st.builds(np.ones, st.just(2)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)


class Colour(enum.StrEnum):
    RED = "red"


@given(VALUES)
def test_plain_values_come_back(value):
    assert plain.decode(plain.encode(value, "value")) == value


@given(TREES)
def test_plain_trees_keep_their_arrays(tree):
    leaves = []
    written = plain.tree_of(tree, "tree", lambda leaf: isinstance(leaf, np.ndarray), leaves)
    written = plain.decode(plain.encode(written, "tree"))
    assert repr(plain.build(written, range(len(leaves)))) == repr(plain.build(written, [*range(len(leaves))]))
    found = plain.matched(written, plain.build(written, leaves), "tree")
    assert all(found[n][1] is leaf for n, leaf in enumerate(leaves))
    assert len(found) == len(leaves)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {2}]}, r"value\['a'\]\[1\] is of type builtins.set"),
        (np.float32(1), "value is of type numpy.float32, which is not JSON; use float"),
        (Colour.RED, "Colour"),
        ({1: 2}, "value has the key 1"),
        (b"bytes", "builtins.bytes"),
    ],
)
def test_plain_refuses_other_values_with_their_place(value, where):
    with pytest.raises(TypeError, match=where):
        plain.encode(value, "value")


def test_plain_refuses_cycles():
    endless = []
    endless.append(endless)
    with pytest.raises(TypeError, match="more than 64 levels deep"):
        plain.encode(endless, "value")


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": 1}, r"x is of keys \['a'\]: expected a dictionary with the keys \['a', 'b'\]"),
        ({"a": 1, "b": (2,)}, r"x\['b'\] is of 1 elements: expected a tuple or list of 2"),
        ({"a": 1, "b": 3}, r"x\['b'\] is of type int"),
        (7, "x is of type int: expected a dictionary"),
    ],
)
def test_plain_refuses_other_structures_with_their_place(value, where):
    with pytest.raises(TypeError, match=where):
        plain.matched({"d": {"a": 0, "b": {"t": [1, 2]}}}, value, "x")
