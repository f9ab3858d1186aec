"""The paper's Figure 2 computes the right values, with only the launches and transfers that it needs."""

import pytest


@pytest.mark.process
@pytest.mark.feature("programs", "values")
@pytest.mark.parametrize("flags", [(), ("--hosts",)], ids=["one process", "three hosts"])
def test_figure2(run_example, flags) -> None:
    assert run_example("figure2.py", *flags).output == (
        "f([1. 2.]) = ([3. 5.], [2. 4.])\n"  # (2x + 1, 2x)
        "4 launches, 3 transfers between slices\n"  # a, b, c, a; a to b, a to c, c to a
    )
