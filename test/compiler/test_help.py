"""Text that `help` shows of the public names, and names that interpreters complete."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import pydoc
import re
import sys
import types
from typing import Any

import jax.numpy as jnp
import pytest

import pathways as pw
import pathways.dialect
import pathways.runtime

API = [module.name for module in pkgutil.iter_modules(pw.__path__) if not module.ispkg]


def shown(value: Any) -> str:
    return pydoc.render_doc(value, renderer=pydoc.plaintext)


@pytest.fixture
def double() -> Any:
    return pw.jit(lambda x: 2 * x, devices=pw.make_virtual_device_set().add_slice(1, "x", name="help"))


def test_help_of_the_package_lists_each_name_once():
    """Names are in the first column, by use; modules of the API after them."""
    columns = re.findall(r"^  (\w\S*(?:, \S+)*)  ", pw.__doc__ or "", re.MULTILINE)
    listed = [name for column in columns for name in column.split(", ")]
    modules = [f"pathways.{name}" for name in API if name not in pw.__all__]
    assert sorted(listed) == sorted([*pw.__all__, *modules])


@pytest.mark.parametrize("name", API)
def test_modules_of_the_api_complete_to_it(name, monkeypatch):
    # The front end of Shardy need not be installed, nor be found afterwards.
    for alias in ("jax.jaxlib._jax", "mlir", "shardy.integrations.python.jax.mpmd"):
        monkeypatch.setitem(sys.modules, alias, types.ModuleType(alias))
    module = importlib.import_module(f"pathways.{name}")
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, each) for each in module.__all__)


@pytest.mark.parametrize("module", [pw, pathways.dialect, pathways.runtime])
def test_packages_complete_to_names_that_they_import_at_use(module):
    assert all(hasattr(module, name) for name in dir(module))
    assert not {"Any", "importlib", "annotations"} & set(dir(module))


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
