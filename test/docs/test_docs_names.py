"""The names of Python and of operations that the prose of the manual mentions are there."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import reduce

import pages
import pytest

from pathways.dialect import OPERATIONS
from pathways.dialect.attributes import names
from pathways.passes.schedule.policies.registry import NAMES

MODULES = {"jax": "jax", "jnp": "jax.numpy", "np": "numpy", "optax": "optax", "pw": "pathways"}
NAME = re.compile(rf"(?<![\w./-])(?:{'|'.join(MODULES)})(?:\.[A-Za-z_]\w*)+")
CALL = re.compile(r"(?<![\w./-])(pw(?:\.\w+)+)\((.*?)\)")
ATTRIBUTES = {value for value in vars(names).values() if isinstance(value, str)}


def find(name: str) -> object:
    """The object of a dotted name, modules that nothing has imported so far included."""
    first, *rest = name.split(".")

    def step(place: object, part: str) -> object:
        if not hasattr(place, part) and inspect.ismodule(place):
            return importlib.import_module(f"{place.__name__}.{part}")
        return getattr(place, part)

    return reduce(step, rest, importlib.import_module(MODULES[first]))


def in_prose(page: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", pages.BLOCK.sub("", pages.read(page)))


@pytest.mark.parametrize("page", pages.pages())
def test_names_exist(page: str) -> None:
    missing = []
    mentioned = {name for code in in_prose(page) for name in NAME.findall(code)}
    for name in mentioned - ATTRIBUTES - set(OPERATIONS):
        try:
            find(name)
        except (AttributeError, ImportError):
            missing.append(name)
    assert not missing


@pytest.mark.parametrize("page", pages.pages())
def test_names_have_their_keywords(page: str) -> None:
    wrong = []
    for name, arguments in {call for code in in_prose(page) for call in CALL.findall(code)}:
        known = inspect.signature(find(name)).parameters  # type: ignore[arg-type]
        wrong += [(name, word) for word in re.findall(r"(?:^|, )(\w+)=", arguments) if word not in known]
    assert not wrong


def test_names_of_ray() -> None:
    dag = pytest.importorskip("ray.dag")
    compiled = pytest.importorskip("ray.dag.compiled_dag_node").CompiledDAG
    assert {"InputNode", "MultiOutputNode"} <= set(dag.__all__)
    assert callable(dag.DAGNode.with_tensor_transport)
    assert "_max_inflight_executions" in inspect.signature(dag.DAGNode.experimental_compile).parameters
    assert callable(compiled.execute)
    assert callable(compiled.teardown)


def test_names_of_schedules_are_all_in_readme() -> None:
    text = pages.read("README.md")
    _, _, named = text.partition("The schedule is ")
    sentence = named.partition("docs/schedules.md")[0]
    assert set(re.findall(r"`([\w-]+)`", sentence)) == set(NAMES)
