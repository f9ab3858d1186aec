"""Virtual slices: valid and invalid requests."""

import subprocess
import sys

import pytest

from pathways.runtime.plan.plan import SliceSpec
from pathways.runtime.resources.virtual import make_virtual_device_set


def test_virtual_slice_is_a_mesh_with_named_axes():
    slice = make_virtual_device_set().add_slice(shape=(2, 4), axis_names=("data", "model"), name="encoder")
    assert slice.size == 8
    assert slice.shape == (2, 4)
    assert repr(slice) == "VirtualSlice('encoder', data=2, model=4)"


def test_virtual_slice_has_a_spec_for_plans():
    devices = make_virtual_device_set()
    slice = devices.add_slice((2, 4), ("data", "model"), name="stage", island="island1", overlap=True)
    assert slice.spec == SliceSpec(slice.name, ("data", "model"), (2, 4), "island1", overlap=True)


def test_add_slice_accepts_a_number_and_a_string_for_one_axis():
    slice = make_virtual_device_set().add_slice(4, "x")
    assert (slice.shape, slice.axis_names) == ((4,), ("x",))


def test_add_slice_never_reuses_a_name():
    devices = make_virtual_device_set()
    first = devices.add_slice(1, "x", name="decoder")
    second = devices.add_slice(1, "x", name="decoder")
    assert (first.name, second.name) == ("decoder", "decoder_1")
    del first
    assert devices.add_slice(1, "x", name="decoder").name == "decoder_2"
    unnamed = [make_virtual_device_set().add_slice(1, "x").name for _ in range(3)]
    assert len(set(unnamed)) == 3


def test_virtual_device_set_does_not_keep_its_slices():
    devices = make_virtual_device_set()
    kept = devices.add_slice(1, "x")
    devices.add_slice(1, "x")
    assert devices.slices == (kept,)
    assert kept.device_set is devices
    assert repr(devices) == f"VirtualDeviceSet({kept!r})"


def test_virtual_slice_is_equal_only_to_itself():
    devices = make_virtual_device_set()
    first, second = devices.add_slice(1, "x"), devices.add_slice(1, "x")
    assert first != second
    assert len({first, second, first}) == 2


@pytest.mark.parametrize(
    ("shape", "axes", "message"),
    [
        ((0,), ("x",), "a slice of zero devices cannot run anything"),
        ((2, 0), ("x", "y"), "a slice of zero devices"),
        ((-1,), ("x",), "expected sizes of at least 1"),
        ((256, 257), ("x", "y"), "expected at most 65536 devices"),
        ((), (), "expected at least one axis"),
        ((2,), ("x", "y"), "expected a name for each axis"),
        ((2, 2), ("x", "x"), "expected distinct names"),
        ((2,), ("",), "not empty"),
    ],
)
def test_add_slice_refuses_wrong_shapes(shape, axes, message):
    with pytest.raises(ValueError, match=message):
        make_virtual_device_set().add_slice(shape, axes)


def test_add_slice_refuses_wrong_types():
    with pytest.raises(TypeError, match="expected an integer or a tuple of integers"):
        make_virtual_device_set().add_slice((1.5,), ("x",))
    with pytest.raises(TypeError, match="expected strings"):
        make_virtual_device_set().add_slice((1,), (0,))


@pytest.mark.parametrize("name", ["", "2nd", "a b", "a-b", "@s"])
def test_add_slice_refuses_names_that_are_not_symbols(name):
    with pytest.raises(ValueError, match="expected a letter or _"):
        make_virtual_device_set().add_slice(1, "x", name=name)


@pytest.mark.process
def test_add_slice_does_not_import_jax():
    code = (
        "import sys, pathways.runtime as r; r.make_virtual_device_set().add_slice(1, 'x');"
        "sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
