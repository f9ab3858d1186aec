"""Compiled code is found by later processes, for the same computation and options only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import pathways as pw
from pathways.runtime.xla import compile_cache, pjrt
from pathways.runtime.xla.compile_cache import (
    Compile,
    CopyCompiled,
    CopyLoaded,
    Job,
    Key,
    LoadAction,
    LoadStored,
    ReuseLoaded,
)

Load = Callable[..., int]
"""Function that loads a program, checks its results, and returns the number of compilations."""


@pytest.fixture(autouse=True)
def no_cache_of_jax() -> Iterator[None]:
    """Turns off the cache of JAX, which tests share, so that code that our store lacks is compiled."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of the stored code."""
    monkeypatch.setenv("PW_CACHE_DIR", str(tmp_path))
    return tmp_path / "executables"


@pytest.fixture
def load(folder: Path, plan_builder, runner, monkeypatch: pytest.MonkeyPatch) -> Load:
    compiled: list[object] = []
    compile_ = pjrt.compile_and_load
    monkeypatch.setattr(pjrt, "compile_and_load", lambda *args: compiled.append(args) or compile_(*args))

    def load(fn=jnp.sin, slices: int = 1, size: int = 1) -> int:
        compiled.clear()
        devices = pw.make_virtual_device_set()
        chosen = [devices.add_slice(shape=(size,), axis_names=("x",)) for _ in range(slices)]
        build = plan_builder(*chosen)
        y = build.argument((8,), chosen[0])
        expected = np.arange(8, dtype=np.float32)
        for slice in chosen:
            y = build.launch(fn, slice, build.transfer(y, slice) if slice is not chosen[0] else y)
            expected = np.asarray(jax.jit(fn)(expected))
        loaded = runner.load(build, y)
        (value,) = loaded.run(runner.place(loaded, np.arange(8, dtype=np.float32)))
        np.testing.assert_array_equal(value, expected)
        return len(compiled)

    return load


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> list[LoadAction]:
    """Collects the action of each computation of each load."""
    collected: list[LoadAction] = []
    choose_actions = compile_cache.choose_actions

    def collect(jobs: Mapping[Key, Job]) -> dict[Key, LoadAction]:
        chosen = choose_actions(jobs)
        collected.extend(chosen.values())
        return chosen

    monkeypatch.setattr(compile_cache, "choose_actions", collect)
    return collected


def test_compile_cache_chooses_the_cheapest_action(
    folder: Path, plan_builder, runner, actions: list[LoadAction]
) -> None:
    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice(shape=(1,), axis_names=("x",)) for _ in range(3)]

    def load(*on: pw.VirtualSlice) -> tuple[object, list[type]]:
        actions.clear()
        build = plan_builder(*on)
        results = [build.launch(jnp.tan, slice, build.argument((5,), slice)) for slice in on]
        return runner.load(build, *results), [type(action) for action in actions]

    first, kinds = load(*slices[:2])
    assert kinds == [Compile, CopyCompiled]
    second, kinds = load(*slices)
    assert kinds == [ReuseLoaded, ReuseLoaded, CopyLoaded]
    del first, second
    third, kinds = load(*slices)
    assert kinds == [LoadStored] * 3
    # A deserialised executable is not serialised again.
    del third
    kept, _ = load(slices[0])
    assert load(*slices)[1] == [ReuseLoaded, LoadStored, LoadStored]
    del kept


@pytest.mark.parametrize("size", [1, 2])
def test_compile_cache_does_not_compile_again(load: Load, folder: Path, size: int) -> None:
    """The program is deleted between the loads, and with it its code in this process."""
    assert load(size=size) == 1
    (path,) = folder.iterdir()
    assert load(size=size) == 0
    assert load(slices=3, size=size) == 0
    assert list(folder.iterdir()) == [path]


def test_compile_cache_finds_stored_code_for_a_later_slice(load: Load, plan_builder, runner) -> None:
    assert load() == 1
    devices = pw.make_virtual_device_set()
    s0 = devices.add_slice(shape=(1,), axis_names=("x",))
    build = plan_builder(s0)
    kept = runner.load(build, build.launch(jnp.sin, s0, build.argument((8,), s0)))
    assert load() == 0
    del kept


def test_compile_cache_compiles_other_code(load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load() == 1
    assert load(jnp.cos) == 1
    assert load(size=2) == 1
    with monkeypatch.context() as patch:
        patch.setattr(jaxlib, "__version__", "0.0.0")
        assert load() == 1
        assert load() == 0
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "0.0.0")
        assert load() == 1
    with monkeypatch.context() as patch:
        patch.setattr(compile_cache, "_FORMAT", b"other")
        assert load() == 1
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " --xla_cpu_enable_fast_math=true")
        assert load() == 1
    assert load() == 0
    assert len(list(folder.iterdir())) == 7


def test_compile_cache_compiles_again_for_another_option(load: Load) -> None:
    assert load() == 1
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        assert load() == 1
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert load() == 0


def test_compile_cache_may_be_turned_off(load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW_CACHE_DIR", "")
    assert load() == 1
    assert load() == 1
    assert not folder.exists()


def test_compile_cache_replaces_a_damaged_file(load: Load, folder: Path) -> None:
    assert load() == 1
    (path,) = folder.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert load() == 1
    assert load() == 0


def test_compile_cache_replaces_code_that_xla_refuses(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pjrt, "serialize", lambda executable: b"no executable")
        assert load() == 1
    assert load() == 1
    assert load() == 0


def test_compile_cache_keeps_to_its_limit(load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    (path,) = folder.iterdir()
    monkeypatch.setenv("PW_CACHE_LIMIT", str(int(path.stat().st_size * 1.5)))
    os.utime(path, (0, 0))
    assert load(jnp.cos) == 1
    assert not path.exists()
    assert load(jnp.cos) == 0


def test_compile_cache_stores_no_code_with_callbacks(folder: Path, plan_builder, runner) -> None:
    def observed(x):
        return jax.pure_callback(lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    s0 = pw.make_virtual_device_set().add_slice(shape=(1,), axis_names=("x",))
    build = plan_builder(s0)
    loaded = runner.load(build, build.launch(observed, s0, build.argument((2,), s0)))
    (value,) = loaded.run(runner.place(loaded, np.ones(2, np.float32)))
    np.testing.assert_array_equal(value, [2, 2])
    assert not folder.exists()


@pytest.mark.process
def test_compile_cache_serves_another_process(folder: Path) -> None:
    program = """if True:
        import jax, jax.numpy as jnp
        import pathways as pw
        from pathways.runtime.xla import pjrt
        compile_, compiled = pjrt.compile_and_load, []
        pjrt.compile_and_load = lambda *args: compiled.append(args) or compile_(*args)
        pw.connect(cpu_devices=3)
        devices = pw.make_virtual_device_set()
        s0 = devices.add_slice(shape=(2,), axis_names=("x",))
        s1 = devices.add_slice(shape=(1,), axis_names=("x",))
        f = pw.jit(lambda w, x: jnp.tanh(x @ w), devices=s0, in_shardings=(None, jax.P("x")))
        g = pw.jit(lambda x: (x ** 2).sum(), devices=s1)
        step = pw.program(lambda w, x: jax.value_and_grad(lambda w: g(f(w, x)))(w))
        loss, gradient = step(jnp.ones((4, 4)), jnp.arange(8.0).reshape(2, 4) / 8)
        print(float(loss).hex(), [float(x).hex() for x in gradient.ravel()])
        print(len(compiled))
    """
    outputs = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.splitlines())
    (first, compiled), (second, compiled_again) = outputs
    assert first == second
    assert (int(compiled) > 0, int(compiled_again)) == (True, 0)
    assert len(list(folder.iterdir())) == int(compiled)
