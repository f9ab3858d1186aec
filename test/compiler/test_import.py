"""Public names: light to import, and all of them defined."""

import subprocess
import sys

import pytest

import pathways


def modules_loaded_by(statement: str) -> set[str]:
    """Returns the top-level modules that a fresh interpreter has loaded after a statement."""
    script = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.process
def test_import_of_pathways_loads_nothing_heavy():
    assert not modules_loaded_by("import pathways") & {"jax", "jaxlib", "numpy", "scipy"}


@pytest.mark.process
@pytest.mark.parametrize("module", ["pathways.dialect", "pathways.passes.manager.registry"])
def test_import_of_compiler_core_does_not_load_jax(module):
    assert "jax" not in modules_loaded_by(f"import {module}")


def test_import_of_public_names():
    for name in pathways.__all__:
        assert getattr(pathways, name) is not None, name
    assert set(pathways.__all__) <= set(dir(pathways))
    with pytest.raises(AttributeError, match="module 'pathways' has no attribute 'pmap'"):
        _ = pathways.pmap
