"""Objects of one process, which cannot be copied, and connections of the process to its devices."""

from __future__ import annotations

import copy
import pickle

import jax.numpy as jnp
import pytest

import pathways as pw


def test_process_objects_are_neither_pickled_nor_copied() -> None:
    devices = pw.make_virtual_device_set()
    placed = pw.jit(jnp.tanh, devices=devices.add_slice((1,), ("x",)))
    program = pw.program(placed)
    lowered = program.lower(1.0)
    for thing in (placed.devices, devices, placed, program, lowered, lowered.compile()):
        for leave in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"belongs to this process .*save\('program.pwb'\)"):
                leave(thing)
    assert program(0.0) == 0.0


def test_connect_again_with_the_same_settings_keeps_the_cluster() -> None:
    """A cell of a notebook that runs again does so."""
    before = pw.cluster()
    devices = pw.make_virtual_device_set()
    program = pw.program(pw.jit(jnp.tanh, devices=devices.add_slice((1,), ("x",))))
    program(0.0)
    assert pw.connect(cpu_devices=len(before.devices)) is before
    with pytest.raises(RuntimeError, match=r"first, .* or pathways.release\(slice\)"):
        pw.connect(cpu_devices=len(before.devices) - 1)
    assert pw.cluster() is before


def test_islands_of_this_process_have_one_host_and_run() -> None:
    for island in pw.cluster().islands:
        assert [host.index for host in island.hosts] == [0]
        assert (island.state, island.memory, island.round_trip) == ("running", None, None)


def test_dir_shows_public_names() -> None:
    assert dir(pw) == sorted(pw.__all__)
    assert all(hasattr(pw, name) for name in pw.__all__)
