"""The public face: light to import, and every name of it is there."""

import subprocess
import sys

import pytest

import pathways


def modules_loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after a statement."""
    script = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_pathways_loads_nothing_heavy():
    assert not modules_loaded_by("import pathways") & {"jax", "jaxlib", "numpy", "scipy"}


@pytest.mark.parametrize("module", ["pathways.dialect", "pathways.passes.manager.registry"])
def test_compiler_core_does_not_load_jax(module):
    assert "jax" not in modules_loaded_by(f"import {module}")


@pytest.mark.parametrize("name", pathways.__all__)
def test_public_name_exists(name):
    assert getattr(pathways, name) is not None
    assert name in dir(pathways)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'pathways' has no attribute 'pmap'"):
        _ = pathways.pmap
