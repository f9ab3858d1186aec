"""What `help` shows of the public names."""

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


def test_the_package_says_what_its_functions_are_for():
    description = pw.__doc__ or ""
    functions = [name for name in pw.__all__ if name.islower() and not name.startswith("_")]
    assert [name for name in functions if name not in description] == []


def test_the_example_of_the_package_runs():
    _, start, rest = (inspect.getdoc(pw) or "").partition("import jax")
    names: dict[str, Any] = {}
    exec(start + rest, names)
    assert jnp.array_equal(names["both"](jnp.arange(3.0)), [0, 4, 16])


@pytest.mark.parametrize("function", [pw.jit, pw.program])
def test_functions_have_types_that_a_reader_knows(function):
    text = shown(function)
    assert "static_argnums: 'int | Sequence[int] | None' = None" in text
    for section in ("Args:", "Returns:", "Raises:", "Example:"):
        assert f"    {section}\n" in text


def test_a_program_shows_what_its_function_says(double):
    @pw.program
    def step(x):
        """Doubles x."""
        return double(x)

    assert shown(step).splitlines()[2:] == ["step(x)", "    Doubles x."]


def test_without_a_word_of_the_function_it_says_what_it_is(double):
    program = pw.program(lambda x: double(x))
    assert "A program of pathways: a call runs it on its slices" in shown(program)
    assert "Placed on VirtualSlice('help" in shown(double)
    assert "fun: 'Callable" not in shown(program) + shown(double)


@pytest.mark.parametrize(
    "name", ["BundleError", "CompileError", "PathwaysWarning", "ProgramError", "ResourceError"]
)
def test_errors_have_the_name_that_users_catch(name):
    assert getattr(pw, name).__module__ == "pathways"
