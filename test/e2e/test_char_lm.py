"""The language model of `make demo` learns in a pipeline over slices what `jax.jit` learns on one device."""

import dataclasses
import re

import pytest

from pathways.passes.analysis.measured.trace_file import read_trace

PHASES = ("0_stablehlo", "1_imported", "2_placed", "3_sharded", "4_scheduled")
ACTIVATIONS = 4 * 16 * 64 * 128
"""Bytes that a whole batch sends over one boundary between stages."""


@dataclasses.dataclass(frozen=True)
class StagesOnSlices:
    """Four stages, assigned to the slices in turn.

    Attributes:
      flags: the flags of the example.
      bubble: the idle part of the step in percent, from the theory of the schedule.
    """

    slices: int
    microbatches: int
    data: int
    model: int
    bubble: str
    flags: tuple[str, ...] = ()


DEFAULT = StagesOnSlices(slices=4, microbatches=8, data=2, model=1, bubble="27.3%")  # 3 / (8 + 3)
ON_HOSTS = StagesOnSlices(
    slices=4, microbatches=8, data=1, model=1, bubble="27.3%", flags=("--mesh=1x1", "--hosts")
)


@pytest.fixture(scope="module", params=[DEFAULT, ON_HOSTS], ids=["meshes", "hosts"])
def pipeline(request: pytest.FixtureRequest) -> StagesOnSlices:
    return request.param


@pytest.fixture(scope="module")
def run(pipeline: StagesOnSlices, run_example):
    return run_example("char_lm.py", "--quick", *pipeline.flags)


@pytest.fixture(scope="module")
def output(run) -> str:
    return run.output


def row(output: str, label: str) -> list[str]:
    """Returns the entries in a row of the table: of the program, and of `jax.jit` where it has one."""
    (entries,) = re.findall(rf"^{label}  +(.*)$", output, flags=re.MULTILINE)
    return entries.replace(",", "").split()


@pytest.mark.process
def test_char_lm_has_the_losses_of_jax_jit(output: str, pipeline: StagesOnSlices) -> None:
    (difference,) = re.findall(r"^losses of the first 12 steps agree: .* (\S+)$", output, flags=re.MULTILINE)
    assert float(difference) < (1e-4 if pipeline.model > 1 or pipeline.data > 1 else 1e-30)
    ours, theirs = map(float, row(output, "loss at step 12"))
    assert ours == pytest.approx(theirs, abs=2e-4)


def test_char_lm_learns(output: str) -> None:
    (before,), (after,) = row(output, "held-out loss before"), row(output, "held-out loss after")
    assert float(after) < float(before) - 1


def test_char_lm_moves_activations_gradients_and_scalars(output: str, pipeline: StagesOnSlices) -> None:
    # Three boundaries, there and back; each slice's share of the global norm goes there and back once.
    scalars = 2 * (pipeline.slices - 1)
    assert row(output, "transfers per step") == [str(2 * 3 * pipeline.microbatches + scalars)]
    # Every device gets its rows of the batch, whole for each place along "model", and the scalars.
    moved = pipeline.model * 2 * 3 * ACTIVATIONS + pipeline.data * pipeline.model * scalars * 4
    assert row(output, "bytes moved per step") == [str(moved)]


def test_char_lm_counts_launches(output: str, pipeline: StagesOnSlices) -> None:
    (launches,) = row(output, "launches per step")
    # Four stages forward, three backward: the last does both in one. Then, for each slice, at most four
    # around the loop: the zeros that its sums start from, and what the norm and the update need.
    in_loop = 7 * pipeline.microbatches
    assert in_loop <= int(launches) <= in_loop + 4 * pipeline.slices


def test_char_lm_has_the_bubble_of_its_schedule(output: str, pipeline: StagesOnSlices) -> None:
    assert row(output, "bubble as planned") == [pipeline.bubble]


def test_char_lm_holds_more_microbatches_on_earlier_slices(output: str, pipeline: StagesOnSlices) -> None:
    peaks = [int(row(output, f"peak bytes on s{n}")[0]) for n in range(pipeline.slices)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] > 3 * 4 * 800_000 / pipeline.slices, "parameters and both moments of AdamW"


def test_char_lm_reports_why_it_is_slower_than_jax_jit(output: str, pipeline: StagesOnSlices) -> None:
    if pipeline is ON_HOSTS:
        assert re.search(r"^\d+% of the tokens/s of jax.jit; 4 worker processes share", output, re.MULTILINE)
        return
    ours, theirs = row(output, "ms of cores per step")
    busy, busy_with_jit = row(output, "cores busy")
    assert re.search(
        rf"^\d+% of the tokens/s of jax.jit, .*: {busy} were busy, {busy_with_jit} with", output, re.M
    )
    assert f"A step takes {ours} ms of them, {theirs} ms with jax.jit: " in output


def test_char_lm_writes_a_step_as_planned_and_as_measured(run) -> None:
    steps = read_trace((run.forms / "train_step.trace.json").read_bytes())
    assert [step.program for step in steps] == ["train_step"] * 3
    page = (run.forms / "train_step.html").read_text()
    assert "planned" in page
    assert steps[-1].title in page


@pytest.mark.parametrize("phase", PHASES)
def test_char_lm_writes_the_ir_after_each_phase(run, phase: str) -> None:
    for program in ("train_step", "evaluate"):
        text = (run.forms / f"{program}.{phase}.mlir").read_text()
        assert "func.func public @main" in text
        assert ('"pw.transfer"' in text) == (phase in ("2_placed", "3_sharded", "4_scheduled"))
