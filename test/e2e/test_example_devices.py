"""Examples run on accelerators when there are enough, otherwise on CPU devices."""

from pathlib import Path

import preloaded
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("platform", "count", "slices", "shape", "expected"),
    [
        ("cpu", 1, 2, (2, 2), ((2, 2), False)),
        ("gpu", 8, 2, (2, 2), ((2, 2), False)),
        ("gpu", 7, 2, (2, 2), ((2, 2), True)),
        ("gpu", 4, 2, (2, 2), ((2, 2), True)),
        ("gpu", 3, 2, (2, 2), ((1, 1), False)),
        ("gpu", 1, 2, (2, 2), ((1, 1), True)),
        ("gpu", 1, 3, (1,), ((1,), True)),
        ("tpu", 3, 3, (1,), ((1,), False)),
    ],
)
def test_examples_fit_slices_on_available_devices(monkeypatch, platform, count, slices, shape, expected):
    monkeypatch.syspath_prepend(EXAMPLES)
    from _devices import fit

    assert fit(platform, count, slices, shape) == expected


ON_ONE_DEVICE = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
import _devices, jax
fit = _devices.fit
_devices.connect = lambda slices, shape, hosts=False: fit("gpu", len(jax.devices()), slices, shape)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("example", "arguments", "promise"),
    [
        ("figure2.py", [], "f([1. 2.]) = ([3. 5.], [2. 4.])\n"),
        ("char_lm.py", ["--quick", "--dump-dir"], "losses of the first 12 steps agree"),
    ],
)
def test_examples_run_on_single_device(tmp_path, example, arguments, promise):
    folder = [str(tmp_path)] if "--dump-dir" in arguments else []
    done = preloaded.run("-c", ON_ONE_DEVICE, EXAMPLES, EXAMPLES / example, *arguments, *folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert promise in done.stdout
