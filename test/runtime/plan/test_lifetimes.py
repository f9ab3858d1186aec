"""Slots that are filled and freed at each step of a plan."""

from small_plans import double, two_slices

from pathways.runtime.plan.lifetimes import BEFORE, SlotChanges, slot_changes
from pathways.runtime.plan.plan import Argument, ArrayType, Plan, Receive, Release, Result, Send, SliceSpec

FLOAT = ArrayType((), "float32")


def test_slot_changes_are_at_their_steps(plan_builder):
    left, right = two_slices()
    build = plan_builder(left, right)
    x, kept = build.argument((4,), left, donated=True), build.argument((4,), left, right)
    y = build.launch(double, left, x, donated=(0,))
    moved = build.transfer(y, right)
    build.release(y)
    plan = build.finish(moved)
    assert plan.slot_slices == {
        x: left.name,
        kept: left.name,
        kept + 1: right.name,
        y: left.name,
        moved: right.name,
    }
    assert list(slot_changes(plan)) == [
        SlotChanges(BEFORE, (), (x, kept, kept + 1)),
        SlotChanges(0, (x,), (y,)),
        SlotChanges(1, (), (moved,)),
        SlotChanges(2, (y,), ()),
    ]
    assert isinstance(plan.steps[2], Release)


def test_slot_changes_of_receives_are_before_the_first_step():
    plan = Plan(
        name="f",
        slices={"s0": SliceSpec("s0", ("x",), (1,))},
        computations={},
        arguments=(Argument(FLOAT, {"s0": 0}),),
        results=(Result(FLOAT, {"s0": 1}),),
        steps=(
            Send((0,), "s0", "s1", "c0", peer=1, index=0),
            Receive((1,), "s1", "s0", "c1", peer=1, index=1),
        ),
        slot_types=(FLOAT,) * 2,
        host=0,
    )
    assert plan.slot_slices == {0: "s0", 1: "s0"}
    assert list(slot_changes(plan)) == [
        SlotChanges(BEFORE, (), (0, 1)),
        SlotChanges(0, (), ()),
        SlotChanges(1, (), ()),
    ]
