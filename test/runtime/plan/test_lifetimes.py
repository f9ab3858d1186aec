"""Which slots begin and end at each step of a plan."""

from pathways.runtime.plan.lifetimes import BEFORE, SlotChanges, slot_changes
from pathways.runtime.plan.plan import Release
from pathways.runtime.resources.virtual import make_virtual_device_set


def double(x):
    return x * 2


def test_slots_begin_and_end_at_their_steps(plan_builder):
    devices = make_virtual_device_set()
    left, right = devices.add_slice(1, "x"), devices.add_slice(1, "x")
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
