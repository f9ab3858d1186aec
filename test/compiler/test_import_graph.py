"""The modules of the front end import each other in one direction, and say so at their top."""

import ast
from pathlib import Path

import pytest

COMPILER = Path(__file__).parents[2] / "compiler"
MODULES = {f"pathways.compiler.{file.stem}": file for file in COMPILER.glob("*.py")}
IMPORTS = (ast.Import, ast.ImportFrom)


def names_of(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """All that may be modules in an import statement."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    module = statement.module or ""
    return {module, *(f"{module}.{alias.name}" for alias in statement.names)}


def imported(module: str) -> set[str]:
    """The modules of the front end that one imports, only for types too."""
    tree = ast.parse(MODULES[module].read_text())
    statements = [node for node in ast.walk(tree) if isinstance(node, IMPORTS)]
    return set().union(*map(names_of, statements)) & MODULES.keys()


def test_no_module_imports_itself_by_way_of_others():
    graph = {module: imported(module) for module in MODULES}
    while leaves := {module for module, imports in graph.items() if not imports & graph.keys()}:
        graph = {module: imports for module, imports in graph.items() if module not in leaves}
    assert not graph, f"in a circle, or in front of one: {sorted(graph)}"


@pytest.mark.parametrize("module", MODULES)
def test_imports_stand_at_the_top(module):
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    tree = ast.parse(MODULES[module].read_text())
    inside = [
        f"line {node.lineno}"
        for function in ast.walk(tree)
        if isinstance(function, functions)
        for node in ast.walk(function)
        if isinstance(node, IMPORTS)
    ]
    assert not inside
