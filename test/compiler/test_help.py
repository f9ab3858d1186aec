"""Text that `help` shows of the public names."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import jax.numpy as jnp
import pytest

import pathways as pw


def shown(value: Any) -> str:
    return pydoc.render_doc(value, renderer=pydoc.plaintext)


@pytest.fixture
def double() -> Any:
    return pw.jit(lambda x: 2 * x, devices=pw.make_virtual_device_set().add_slice(1, "x", name="help"))


def test_help_of_the_package_names_its_functions():
    description = pw.__doc__ or ""
    functions = [name for name in pw.__all__ if name.islower() and not name.startswith("_")]
    assert [name for name in functions if name not in description] == []


def test_help_of_the_package_has_an_example_that_runs():
    _, start, rest = (inspect.getdoc(pw) or "").partition("import jax")
    names: dict[str, Any] = {}
    exec(start + rest, names)
    assert jnp.array_equal(names["both"](jnp.arange(3.0)), [0, 4, 16])


@pytest.mark.parametrize("function", [pw.jit, pw.program])
def test_help_of_functions_has_plain_types(function):
    text = shown(function)
    assert "static_argnums: 'int | Sequence[int] | None' = None" in text
    for section in ("Args:", "Returns:", "Raises:", "Example:"):
        assert f"    {section}\n" in text


def test_help_of_a_program_is_of_its_function(double):
    @pw.program
    def step(x):
        """Doubles x."""
        return double(x)

    assert shown(step).splitlines()[2:] == ["step(x)", "    Doubles x."]


def test_help_of_a_program_without_docstring(double):
    program = pw.program(lambda x: double(x))
    assert "A program of pathways: a call runs it on its slices" in shown(program)
    assert "Placed on VirtualSlice('help" in shown(double)
    assert "fun: 'Callable" not in shown(program) + shown(double)


@pytest.mark.parametrize(
    "name", ["BundleError", "CompileError", "PathwaysWarning", "ProgramError", "ResourceError"]
)
def test_help_names_errors_as_users_catch_them(name):
    assert getattr(pw, name).__module__ == "pathways"
