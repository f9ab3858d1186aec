"""Names of leaves: every leaf has a distinct name, and JSON keeps the tree."""

import itertools
import json
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways.runtime.bundle.trees import MAX_DEPTH, TreeError, from_json, leaf_names, to_json

words = st.text('ab_0. "\\\n\x00é/', max_size=4)


def nodes(children):
    return (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(words, children, max_size=3).map(lambda d: dict(sorted(d.items())))
        | st.dictionaries(st.integers(-3, 12), children, max_size=3).map(lambda d: dict(sorted(d.items())))
        | st.dictionaries(words, children, max_size=3).map(OrderedDict)
    )


shapes = st.recursive(st.none() | st.just("leaf"), nodes, max_leaves=12)


def numbered(shape, counter):
    match shape:
        case "leaf":
            return next(counter)
        case dict():
            return type(shape)((key, numbered(child, counter)) for key, child in shape.items())
        case list() | tuple():
            return type(shape)(numbered(child, counter) for child in shape)
    return None


@given(shapes)
def test_leaf_names_are_different_and_in_order(shape):
    counter = itertools.count()
    found = list(leaf_names("x", numbered(shape, counter)))
    names, numbers = [name for name, _ in found], [number for _, number in found]
    assert numbers == list(range(next(counter)))
    assert len(set(names)) == len(names)
    assert all(name.isprintable() for name in names)


@given(shapes)
def test_to_json_keeps_the_tree(shape):
    tree = numbered(shape, itertools.count())
    again = from_json(json.loads(json.dumps(to_json(tree))))
    assert again == tree
    assert repr(again) == repr(tree)


def test_leaf_names_are_as_documented():
    tree = {"params": {"linear/~/w": 0, "w": 1}, "rest": [2, (3, None)], "steps": {7: 4}}
    assert [name for name, _ in leaf_names("state", tree)] == [
        'state.params."linear/~/w"',
        "state.params.w",
        "state.rest.0",
        "state.rest.1.0",
        "state.steps.7",
    ]
    assert list(leaf_names("x", 0)) == [("x", 0)]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (True, "neither a number"),
        ("w", "neither a number"),
        ([0], "neither a number"),
        ({}, "object of one entry"),
        ({"list": [], "tuple": []}, "object of one entry"),
        ({"set": []}, "of a kind that is not"),
        ({"list": {}}, "of a kind that is not"),
        ({"dict": [["a"]]}, "not a pair"),
        ({"dict": [[True, 0]]}, "not a pair"),
        ({"dict": [["a", 0], ["a", 1]]}, "a duplicate key"),
        ({"dict": [["b", 0], ["a", 1]]}, "out of order"),
        ({"record": [["a", 0], [1, 1]]}, "different types"),
    ],
)
def test_from_json_refuses_other_json(value, problem):
    with pytest.raises(TreeError, match=problem):
        from_json(value)


def test_from_json_limits_depth():
    def nest(depth):
        return {"list": [nest(depth - 1)]} if depth else 0

    from_json(nest(MAX_DEPTH))
    with pytest.raises(TreeError, match="nested more than"):
        from_json(nest(MAX_DEPTH + 1))
