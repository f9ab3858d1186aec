"""The short examples print what plain JAX prints once the diffs in their docstrings are reverted."""

from __future__ import annotations

import ast
import itertools
import re
import types
from pathlib import Path

import numpy as np
import pytest

import pathways as pw

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ("flax_linen", "flax_nnx", "equinox_autoencoder", "encoder_decoder", "kv_decode", "actor_learner")
PACKAGES = {"flax_linen": "flax", "flax_nnx": "flax", "equinox_autoencoder": "equinox"}


def plain(source: str) -> str:
    """Returns the plain version of an example: with each block of the diff in its docstring reverted."""
    docstring = ast.parse(source).body[0].value.value
    body = source.replace(docstring, "")
    changed = re.findall(r"^    ([-+])(.*)\n|^\n", docstring, re.MULTILINE)
    for is_change, block in itertools.groupby(changed, lambda change: change[0] != ""):
        if not is_change:
            continue
        before, after = [], []
        for sign, line in block:
            (before if sign == "-" else after).append(f"{line}\n")
        assert body.count("".join(after)) == 1, f"not in the example, or twice: {after}"
        body = body.replace("".join(after), "".join(before))
    return body


def printed(name: str, source: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the output of the `main` of an example, on slices of the devices that the tests have."""
    module = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec", dont_inherit=True), module.__dict__)
    devices = pw.make_virtual_device_set()
    module.slices = lambda count: [devices.add_slice((1,), ("x",)) for _ in range(count)]
    capsys.readouterr()
    module.main()
    return capsys.readouterr().out


@pytest.mark.parametrize("name", SHORT)
def test_example_prints_what_its_plain_version_prints(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(PACKAGES.get(name, "jax"))
    monkeypatch.syspath_prepend(EXAMPLES)
    source = (EXAMPLES / f"{name}.py").read_text()
    theirs = plain(source)
    used = {node.id for node in ast.walk(ast.parse(theirs)) if isinstance(node, ast.Name)}
    assert "pw" not in used
    ours, expected = (printed(name, text, capsys) for text in (source, theirs))
    number = re.compile(r"\d+(?:\.\d+)?")
    assert number.sub("#", ours) == number.sub("#", expected)
    np.testing.assert_allclose(
        np.float64(number.findall(ours)), np.float64(number.findall(expected)), rtol=1e-5, atol=2e-6
    )
    assert len(number.findall(ours)) >= 2


@pytest.mark.process
def test_example_runs_as_a_script(run_example) -> None:
    pytest.importorskip("flax")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", run_example("flax_linen.py").output)]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 5


def test_example_does_nothing_when_it_is_imported() -> None:
    for path in EXAMPLES.glob("[!_]*.py"):
        assert path.read_text().rpartition('\nif __name__ == "__main__":\n')[1], path.name
