"""A few of the cases of `make fuzz`: conditions, what loops carry, and ends that depend on values."""

import pytest
import random_branches
import random_carries
import random_while_loops

# Random pipelines may well be on one slice alone.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*{words}:pathways.PathwaysWarning")
    for words in ("nothing is pipelined", "donated buffers were not usable")
]


@pytest.mark.parametrize("number", range(16))
def test_nests_of_conditions(number):
    assert random_branches.difference(number) == ""


@pytest.mark.parametrize("number", range(8))
def test_loops_that_end_when_their_values_say_so(number):
    assert random_while_loops.difference(number) == ""


@pytest.mark.parametrize("number", range(10))
def test_loops_that_carry_values_between_slices(number):
    assert random_carries.difference(number) == ""
