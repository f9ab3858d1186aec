"""Trees of types: equal neighbours are one line, and names with one group below need none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pathways.tools.inputs.type_trees import type_tree

F32, I32 = ("f32[8]", 32), ("i32[]", 4)


def test_type_tree_merges_equal_neighbours():
    layers = {f"state['layers'][{n}]['{name}']": F32 for n in range(12) for name in ("w", "b")}
    assert type_tree({"step": I32, **layers, "x.mu": F32, "x.nu": F32}) == [
        ("step", "i32[]"),
        ("state['layers'][0..11]{['w'], ['b']}", "f32[8]"),
        ("x{.mu, .nu}", "f32[8]"),
    ]


def test_type_tree_counts_arrays_below_nodes():
    assert type_tree({"p[0]['w.x']": F32, "p[0]['b']": I32, "p[1]['w.x']": F32, "p[1]['b']": I32}) == [
        ("p[0..1]", "2 x 2 arrays, 72 B"),
        ("  ['w.x']", "f32[8]"),
        ("  ['b']", "i32[]"),
    ]


def test_type_tree_names_first_and_last_of_many():
    assert type_tree({f"p['{name}']": F32 for name in "abcd"}) == [("p{['a'] to ['d']}", "f32[8]")]


parts = st.sampled_from(["[0]", "[1]", "['w']", ".mu", "['a]b']"])
names = st.tuples(st.sampled_from("pq"), st.lists(parts, max_size=4)).map(
    lambda pair: "".join((pair[0], *pair[1]))
)


@given(st.dictionaries(names, st.sampled_from([F32, I32])))
def test_type_tree_has_at_most_a_line_for_each_name_and_node(types: dict[str, tuple[str, int]]):
    ends = {
        name: of for name, of in types.items() if not any(o != name and o.startswith(name) for o in types)
    }
    lines = type_tree(ends)
    assert len(lines) <= 5 * len(ends)
    assert {type_ for _, type_ in lines} >= {type_ for type_, _ in ends.values()}
