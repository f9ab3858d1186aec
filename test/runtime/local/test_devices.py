"""Devices of this process: their choice, and their objects in JAX."""

import os
import subprocess
import sys

import jax
import pytest

from pathways.runtime.local import devices
from pathways.runtime.resources.manager import ResourceManager
from pathways.runtime.resources.virtual import make_virtual_device_set


def test_devices_of_a_slice_are_a_mesh():
    manager = ResourceManager(devices.discover(8, islands=2))
    slice = make_virtual_device_set().add_slice((2, 2), ("x", "y"), island="island1")
    binding = manager.bind([slice], "f")[slice]
    handles = jax.devices("cpu")[4:8]
    assert devices.devices_of(binding) == tuple(handles)
    mesh = devices.mesh_of(binding)
    assert mesh.axis_names == ("x", "y")
    assert mesh.devices.tolist() == [handles[:2], handles[2:]]


def test_devices_have_the_memory_that_connect_or_jax_gives():
    assert {device.memory for device in devices.discover(2).devices} == {None}
    assert {device.memory for device in devices.discover(2, device_memory=1 << 20).devices} == {1 << 20}


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, env={**os.environ, **environment}
    )


@pytest.mark.process
def test_number_of_devices_is_that_of_jax():
    code = "import pathways as pw; print(len(pw.cluster().devices), len(pw.connect(islands=3).islands))"
    done = run_python(code, JAX_NUM_CPU_DEVICES="6")
    assert (done.returncode, done.stdout) == (0, "6 3\n")


def test_discover_refuses_more_devices_than_jax_has():
    jax.devices()
    with pytest.raises(RuntimeError, match=r"JAX has started with 8 CPU devices; .*JAX_NUM_CPU_DEVICES=9"):
        devices.discover(9)


def test_discover_refuses_unequal_islands():
    with pytest.raises(ValueError, match="8 devices do not divide into equal islands"):
        devices.discover(8, islands=3)


@pytest.mark.process
def test_connect_creates_cpu_devices_once():
    """Devices are created before JAX starts; bound slices keep their devices."""
    code = (
        "from pathways.runtime import connect, bind, make_virtual_device_set as m\n"
        "print(len(connect(cpu_devices=5).devices))\n"
        "s = m().add_slice(1, 'x'); bind([s], 'f'); connect(cpu_devices=1, device_memory=1)"
    )
    done = run_python(code)
    assert done.stdout == "5\n"
    assert "RuntimeError: connect: slices s0 are bound to devices" in done.stderr
