"""Typical first mistakes in Python: messages name the object, and what may be meant."""

import jax.numpy as jnp
import pytest

import pathways as pw

W = jnp.ones((4, 4))


@pytest.fixture
def stage():
    devices = pw.make_virtual_device_set()
    return pw.jit(lambda w, x: x @ w, devices=devices.add_slice((1,), ("x",)))


def test_jit_error_notes_slice_and_types(stage):
    @pw.program
    def apply(w, x):
        return stage(w, x)

    with pytest.raises(TypeError, match="dot_general") as caught:
        apply(W, jnp.ones((2, 5)))
    assert (
        caught.value.__notes__[0]
        == f"'lambda', placed on {stage.devices.name}, got float32[4,4], float32[2,5]"
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (((W, W), W), {}, r"compiled for params of structure list, got tuple: "),
        (([W], W), {}, r"compiled for params of structure list of length 2, got list of length 1: "),
        (([W, [W]], W), {}, r"compiled for params\[1\] of structure an array, got list: "),
        (([W, W],), {"x": W}, r"compiled for positional arguments of structure tuple of length 2, got "),
    ],
)
def test_compiled_names_arguments_of_other_structure(stage, args, kwargs, message):
    @pw.program
    def apply(params, x):
        return stage(params[0], x)

    compiled = apply.lower([W, W], W).compile()
    with pytest.raises(TypeError, match=f"program 'apply' was {message}"):
        compiled(*args, **kwargs)


def test_jit_suggests_phase(stage):
    with pytest.raises(ValueError, match="unknown phase 'plced'; did you mean 'placed'"):
        stage.lower(W, W).as_text("plced")


def test_package_suggests_name():
    with pytest.raises(AttributeError, match="has no attribute 'acumulate'") as caught:
        pw.acumulate  # noqa: B018
    # Python derives its suggestion from these two.
    assert (caught.value.name, caught.value.obj) == ("acumulate", pw)


def test_pw_dump_to_refuses_file(stage, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("PW_DUMP_TO", str(file))
    with pytest.raises(OSError, match="PW_DUMP_TO names no folder to write to: File exists"):
        stage.lower(W, W)
