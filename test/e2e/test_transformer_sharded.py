"""The transformer on two slices of 2x2 devices: the results of `jax.jit`, and shardings of gradients."""

import re

import pytest

NUMBER = r"[\d.]+e[+-]\d+"


@pytest.fixture(scope="module", params=["float32", "x64"])
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def output(precision: str, run_example) -> str:
    return run_example("transformer_sharded.py", *(["--x64"] if precision == "x64" else [])).output


@pytest.mark.process
def test_transformer_sharded_agrees_with_jit(output: str, precision: str) -> None:
    verdicts = re.findall(rf"^(\w+) +(\w+): .* ({NUMBER})$", output, flags=re.MULTILINE)
    assert [name for name, _, _ in verdicts] == ["gradient", "SGD", "AdamW", "loss"]
    assert {verdict for _, verdict, _ in verdicts} == {"agree"}
    assert max(float(number) for _, _, number in verdicts) <= (1e-10 if precision == "x64" else 1e-6)


@pytest.mark.parametrize("stage", ["front", "back"])
def test_transformer_sharded_gradients_have_shardings_of_parameters(output: str, stage: str) -> None:
    lines = re.findall(rf"^{stage}\.block\.(\w+) +\([\d, ]+\) +P(\(.*?\)) ", output, flags=re.MULTILINE)
    assert {name: re.findall("None|model|data", spec) for name, spec in lines} == {
        "attention_norm": [],
        "qkv": ["None", "None", "model"],
        "project": ["model"],
        "mlp_norm": [],
        "up": ["None", "model"],
        "down": ["model"],
    }


def test_transformer_sharded_moves_activations_and_their_gradients_only(output: str, precision: str) -> None:
    transfers, wire = re.findall(r"transfers per step (\d+), bytes on the wire ([\d,]+)", output)[0]
    # Each of the two sends to the two places along "model" that share rows of the batch.
    activations = (8 if precision == "x64" else 4) * 8 * 16 * 32
    assert int(transfers) == 2
    assert int(wire.replace(",", "")) == 2 * 2 * activations
