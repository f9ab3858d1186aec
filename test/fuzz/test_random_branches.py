"""Sample of the cases of `make fuzz`: conditions, carries of loops, and loops of unknown trip counts."""

import pytest
import random_branches
import random_carries
import random_while_loops

# Random pipelines may well be on one slice alone.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*{words}:pathways.PathwaysWarning")
    for words in ("nothing is pipelined", "donated buffers were not usable")
]


@pytest.mark.parametrize("number", range(8))
def test_random_branches(number):
    assert random_branches.difference(number) == ""


@pytest.mark.parametrize("number", range(5))
def test_random_while_loops(number):
    assert random_while_loops.difference(number) == ""


@pytest.mark.parametrize("number", range(6))
def test_random_carries(number):
    assert random_carries.difference(number) == ""
