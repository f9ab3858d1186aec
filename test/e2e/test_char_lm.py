"""The language model of `make demo` learns on two slices what `jax.jit` learns on one device."""

import re

import pytest

PHASES = ("0_stablehlo", "1_imported", "2_placed", "3_sharded", "4_scheduled")


@pytest.fixture(scope="module", params=["2x2", "1x1"])
def mesh(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(mesh: str, run_example):
    return run_example("char_lm.py", "--quick", *([] if mesh == "2x2" else ["--mesh", mesh]))


@pytest.fixture(scope="module")
def output(run) -> str:
    return run.output


def row(output: str, label: str) -> list[float]:
    """The numbers in a row of the table: of the program, and of `jax.jit` where it has one."""
    (numbers,) = re.findall(rf"^{label}  +(.*)$", output, flags=re.MULTILINE)
    return [float(number.replace(",", "")) for number in numbers.split()]


def test_losses_agree_with_jax_jit(output: str) -> None:
    assert re.search(r"^losses of the first 12 steps agree", output, flags=re.MULTILINE)
    ours, theirs = row(output, "loss at step 12")
    assert ours == pytest.approx(theirs, abs=2e-4)


def test_learns(output: str) -> None:
    (before,), (after,) = row(output, "held-out loss before"), row(output, "held-out loss after")
    assert after < before - 1


def test_moves_activations_their_gradients_and_two_scalars(output: str, mesh: str) -> None:
    activations = 4 * 16 * 64 * 128
    data, model = map(int, mesh.split("x"))
    assert row(output, "transfers per step") == [4]
    # Every device gets its part of the batch, whole for each place along "model", and the scalars.
    assert row(output, "bytes moved per step") == [model * 2 * activations + data * model * 2 * 4]


def test_counts_launches_and_memory(output: str) -> None:
    (launches,) = row(output, "launches per step")
    # Two forward, two backward, an update on each slice, and at most two for the global norm.
    assert 6 <= launches <= 8
    for name in ("s0", "s1"):
        (peak,) = row(output, f"peak bytes on {name}")
        assert peak > 3 * 4 * 400_000, "parameters and both moments of AdamW"


@pytest.mark.parametrize("phase", PHASES)
def test_writes_the_ir_after_each_phase(run, phase: str) -> None:
    for program in ("train_step", "evaluate"):
        text = (run.forms / f"{program}.{phase}.mlir").read_text()
        assert "func.func public @main" in text
        assert ('"pw.transfer"' in text) == (phase in ("2_placed", "3_sharded", "4_scheduled"))
