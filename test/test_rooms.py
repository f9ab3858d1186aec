"""Rules of imports: rooms import from rooms to their left, at the top of a module, and without cycles."""

from __future__ import annotations

import ast
import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

ROOMS = (
    "dialect.attributes",
    "dialect.operations",
    "dialect.syntax",
    "dialect.relations",
    "dialect.verification",
    "dialect",
    "passes.manager",
    "passes.analysis",
    "passes.analysis.measured",
    "passes.schedule.policies",
    "passes.import_.branches",
    "passes.import_",
    "passes.import_.mpmd",
    "passes.place.inference",
    "passes.place",
    "passes.shard.halves",
    "passes.shard",
    "passes.shard.updates",
    "passes.schedule.chunks",
    "passes.schedule.replicas",
    "passes.schedule.unroll",
    "passes.schedule.search",
    "passes.schedule.order",
    "passes.schedule.fuse",
    "passes.schedule.memory",
    "passes.schedule",
    "passes.bind",
    "passes",
    "runtime.plan",
    "runtime.resources",
    "runtime.bundle",
    "runtime.control.records",
    "runtime.control",
    "runtime.xla",
    "runtime.local",
    "runtime.hosts.protocol",
    "runtime.hosts.launch",
    "runtime.hosts.splitting",
    "runtime.hosts.worker",
    "runtime.hosts.cluster",
    "runtime.hosts.client",
    "runtime.traces",
    "runtime.simulate",
    "runtime.data",
    "runtime.resilience",
    "runtime.resilience.snapshots",
    "runtime.resilience.spares",
    "runtime.metrics",
    "runtime.service.protocol",
    "runtime.service.sharing",
    "runtime.service.client",
    "runtime.service.relaying",
    "runtime.service.served",
    "runtime.service",
    "runtime.proxy.wire",
    "runtime.proxy.arrays",
    "runtime.proxy.files",
    "runtime.proxy.worker",
    "runtime.clusters",
    "runtime.proxy.reading",
    "runtime.proxy.loading",
    "runtime.proxy.hosted",
    "runtime.proxy",
    "runtime.proxy.sessions",
    "runtime.proxy.serving",
    "compiler.frontend",
    "compiler.lower",
    "compiler.backends",
    "compiler",
    "compiler.data",
    "compiler.resilience.layouts",
    "compiler.resilience.memory",
    "compiler.resilience",
    "compiler.auto",
    "compiler.mpmd",
    "tools.common",
    "tools.inputs",
    "tools.drivers",
    "tools.drivers.fronts",
    "tools.lsp",
    "tools",
)
"""From left to right."""

FACES = (
    "pathways",
    "pathways.checkpoint",
    "pathways.extending",
    "pathways.mpmd",
    "pathways.proxy",
    "runtime",
    "runtime.hosts",
)
"""Packages that belong to no room: they offer names of any, and import them at their first use."""

EXTENSIONS = {
    "traces": ("runtime.traces", "runtime.simulate"),
    "data": ("runtime.data", "compiler.data"),
    "resilience": ("runtime.resilience", "compiler.resilience"),
    "service": ("runtime.service", "runtime.metrics"),
    "proxy": ("runtime.proxy",),
}
"""Folders of each extension. The rest is the core: it imports none, and no extension imports another one."""

FOUNDATIONS = {"resilience": ("data",), "proxy": ("data",)}
"""Extensions that build on others: both write checkpoints, and training that goes on makes batches."""

COMPOSED = ("runtime.clusters", "compiler", "tools")
"""Folders that put the core and its extensions together."""

JAX = (*ROOMS[ROOMS.index("runtime.xla") :],)
"""The rooms that may import jax. The parents of tools do not: `test/tools/test_start.py`."""

MAX_MODULES = 16
"""Largest number of modules and folders in a folder."""

EXCEPTIONS = {
    "compiler.data.checkpoint imports etils inside of a function",
    "compiler.resilience.run_folder imports etils inside of a function",
    "compiler.data.checkpoint imports orbax inside of a function",
    "compiler.data.checkpoint imports compiler.data.orbax_handlers inside of a function",
    "passes.schedule.search.exact imports ortools inside of a function",
    "passes.analysis.flow imports scipy inside of a function",
    "runtime.hosts.launch.ray_launcher imports ray inside of a function",
    "runtime.data.array_files imports tensorstore inside of a function",
    "runtime.resources.virtual imports runtime.xla.tracebacks inside of a function",
    "runtime.resources.virtual imports runtime.xla.tracebacks, which is to its right",
}
"""Imports that break the rules for a reason: Orbax, OR-tools and Ray are extras, Orbax brings etils,
scipy takes longer to import than a small program to place, and JAX's setting says how to filter the traceback
of an error of a slice."""


@dataclasses.dataclass(frozen=True)
class Import:
    """An import of a module; `where` is `top`, `types` (only for type checkers) or `inside` of a function."""

    importer: str
    imported: str
    where: str


def files() -> dict[str, Path]:
    """Every module of the project by its name without `pathways.`, with its file."""
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for folder in ("dialect", "passes", "runtime", "compiler", "tools")
        for path in (ROOT / folder).rglob("*.py")
    }
    names = {name: name.removesuffix(".__init__") for name in found} | {
        "compiler._root.__init__": "pathways",
        "compiler._root.checkpoint": "pathways.checkpoint",
        "compiler._root.extending": "pathways.extending",
        "compiler._root.mpmd": "pathways.mpmd",
        "compiler._root.proxy": "pathways.proxy",
    }
    return {names[name]: path for name, path in found.items()}


FILES = files()
MODULES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}


def imports() -> Iterator[Import]:
    for name, tree in MODULES.items():
        yield from of_body(name, tree.body, "top")


def of_body(name: str, nodes: list[ast.stmt], where: str) -> Iterator[Import]:
    for node in nodes:
        match node:
            case ast.Import():
                yield from (Import(name, module_of(alias.name), where) for alias in node.names)
            case ast.ImportFrom():
                assert node.level == 0, f"{name}: imports are absolute"
                names = (module_of(f"{node.module}.{alias.name}") for alias in node.names)
                yield from dict.fromkeys(Import(name, module, where) for module in names)
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                yield from of_body(name, node.body, "types")
            case _:
                inner = "inside" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else where
                children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
                yield from of_body(name, children, inner)


def module_of(name: str) -> str:
    """The module that an imported name is, or is in; of other projects only their name."""
    own = name.removeprefix("pathways.")
    if own == name and name != "pathways":
        return name.partition(".")[0]
    return own if own in MODULES else own.rpartition(".")[0] or "pathways"


def rank(module: str) -> int:
    """The place of a module's room, counted from the left; faces stand on the right of all."""
    if module in FACES:
        return len(ROOMS)
    rooms = [room for room in ROOMS if f"{module}.".startswith(f"{room}.")]
    assert rooms, f"{module} is in no room"
    # A room within a room may stand on its right.
    return ROOMS.index(max(rooms, key=len))


def family_of(module: str) -> str:
    """The extension that a module is part of; `core`, or nothing if it puts extensions together."""
    families = {folder: family for family, folders in EXTENSIONS.items() for folder in folders}
    families |= dict.fromkeys(COMPOSED, "")
    if module in FACES:
        return ""
    folders = [folder for folder in families if f"{module}.".startswith(f"{folder}.")]
    return families[max(folders, key=len)] if folders else "core"


def violations() -> Iterator[str]:
    for statement in imports():
        importer, imported, where = statement.importer, statement.imported, statement.where
        if importer in FACES and where == "types":
            continue
        text = f"{importer} imports {imported}"
        room = ROOMS[rank(importer)] if importer not in FACES else ""
        if where == "inside" and room.partition(".")[0] != "tools":
            yield f"{text} inside of a function"
        family, of_imported = family_of(importer), family_of(imported)
        if family and of_imported and of_imported not in ("core", family, *FOUNDATIONS.get(family, ())):
            yield f"{text}, which is another extension"
        if imported == "jax" and room not in JAX:
            yield f"{text} at the top"
        if imported not in MODULES:
            continue
        if rank(imported) > rank(importer):
            yield f"{text}, which is to its right"
        if where != "types" and any(other.startswith(f"{importer}.") for other in MODULES):
            yield f"{text} at once, but is the face of a package"


def folders() -> Iterator[str]:
    """Folders that are no room of their own, whose rank is not checked, and folders that are too full."""
    sizes = collections.Counter(name.rpartition(".")[0] for name in MODULES)
    for folder, count in sizes.items():
        if folder and folder not in ROOMS + FACES:
            yield f"{folder} is no room of its own"
        if count > MAX_MODULES:
            yield f"{folder} has {count} modules"


def cycles() -> Iterator[str]:
    graph: dict[str, set[str]] = {name: set() for name in MODULES if name not in FACES}
    for statement in imports():
        if statement.importer in graph and statement.imported in graph:
            graph[statement.importer].add(statement.imported)
    reached = {name: reachable(name, graph) for name in graph}
    groups = {frozenset(n for n in reached[name] if name in reached[n]) for name in graph}
    yield from (f"{', '.join(sorted(group))} import each other" for group in groups if len(group) > 1)


def reachable(name: str, graph: dict[str, set[str]]) -> set[str]:
    """The modules that a module imports, at once or through others."""
    reached: set[str] = set()
    pending = [name]
    while pending:
        new = graph[pending.pop()] - reached
        reached |= new
        pending += new
    return reached


def starters_of_threads() -> Iterator[str]:
    ways = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread"}
    for name, tree in MODULES.items():
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & ways
        if used and name != "runtime.resources.threads":
            yield f"{name} uses {', '.join(sorted(used))}; start threads by runtime.resources.threads"


def runners_of_mlir_passes() -> Iterator[str]:
    # `passes.manager.text` has MLIR parse what users write, and runs nothing.
    allowed = {"dialect.operations.bindings", "passes.manager.text"}
    for name, tree in MODULES.items():
        used = {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        if "PassManager" in used and name not in allowed:
            yield f"{name} imports PassManager; run passes of MLIR by dialect.run_mlir_passes"


def guessers_of_names() -> Iterator[str]:
    for statement in imports():
        if statement.imported == "difflib" and statement.importer != "dialect.spelling":
            yield f"{statement.importer} imports difflib; guess names by dialect.spelling"


def lines_of_families() -> dict[str, int]:
    """Returns the number of lines of the core, of each extension, and of the rest by their first folder."""
    lines: collections.Counter[str] = collections.Counter()
    for name, path in FILES.items():
        family, folder = family_of(name), name.partition(".")[0]
        is_named = family and (family != "core" or folder == "runtime")
        lines[family if is_named else folder] += len(path.read_text().splitlines())
    return dict(lines.most_common())


def test_rooms_keep_to_the_rules() -> None:
    rules = (violations, cycles, folders, starters_of_threads, runners_of_mlir_passes, guessers_of_names)
    seen = {found for rule in rules for found in rule()}
    assert seen - EXCEPTIONS == set(), "new"
    assert EXCEPTIONS - seen == set(), "no exception any more: remove it from the table"


if __name__ == "__main__":
    print(", ".join(f"{family} {lines:,}" for family, lines in lines_of_families().items()))
