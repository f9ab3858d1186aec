"""Generator of pages from declarations.

It writes docs/pw_ops.md, pw_forms.md and pw_passes.md from operations, forms and passes, docs/glossary.md
and configuration.md from glossary.py and configuration.py beside them, docs/ten_minutes.ipynb, a notebook,
from docs/ten_minutes.md, docs/schedules.svg, the picture of README, and passes/manager/summaries.json, which
`pw-opt` lists.

With `--check` it writes nothing, and fails when one of them is stale.
"""

import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import configuration
import glossary
from tables import table

from pathways.dialect import FORMS, OPERATIONS, Form, PwOp, Trait
from pathways.dialect.attributes.fields import Values
from pathways.passes.manager import registry
from pathways.passes.manager.base import Pass, options_of

DOCS = Path(__file__).parent
NOTICE = "<!-- Made by `make docs` from {source}; do not edit. -->\n"


def main(check: bool) -> int:
    """Writes or checks all pages; returns the exit status."""
    pages = {
        DOCS / "pw_ops.md": ops_page(),
        DOCS / "pw_forms.md": forms_page(),
        DOCS / "pw_passes.md": passes_page(),
        DOCS / "configuration.md": NOTICE.format(source="`docs/configuration.py`")
        + "\n"
        + configuration.page(),
        DOCS / "glossary.md": NOTICE.format(source="`docs/glossary.py`") + "\n" + glossary.page(),
        DOCS / "ten_minutes.ipynb": notebook(DOCS / "ten_minutes.md"),
        DOCS / "schedules.svg": picture(DOCS.parent / "README.md"),
        registry.SUMMARIES: summaries(),
    }
    stale = [path for path, text in pages.items() if read(path) != text]
    if check:
        for path in stale:
            print(f"{path.parent.name}/{path.name} is stale: run 'make docs'", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages[path])
    return 0


def summaries() -> str:
    """Returns the summary and options of each pass, as JSON for listings."""
    entries = {
        name: dataclasses.asdict(registry.summary_of(registry.load(name))) for name in registry.names()
    }
    return json.dumps(entries, indent=1) + "\n"


def read(path: Path) -> str | None:
    """Returns the text of a page, None when it does not exist."""
    return path.read_text() if path.exists() else None


def notebook(page: Path) -> str:
    """Returns a page as a notebook without outputs: its blocks of Python are cells of code, the rest is
    text."""
    cells: list[dict[str, object]] = []
    for number, block in enumerate(re.split(r"^```python\n(.*?)^```\n", page.read_text(), flags=re.M | re.S)):
        if source := block.strip().splitlines(keepends=True):
            cell = {"cell_type": "code" if number % 2 else "markdown", "id": f"cell-{number}", "metadata": {}}
            outputs = {"execution_count": None, "outputs": []} if number % 2 else {}
            cells.append({**cell, **outputs, "source": source})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return (
        json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1)
        + "\n"
    )


def picture(page: Path) -> str:
    """Returns the pipeline of a page under two schedules, as `pw-viz` draws it."""
    programs = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    (program,) = (text for text in programs if "schedule=" in text)
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "step.py").write_text(program)
        for words in (
            ("pw_compile", "step.py:step", "--compile-to=placed", "-o", "placed.mlir"),
            ("pw_viz", "placed.mlir", "--schedule", "1f1b", "--schedule", "zb-h1", "-o", "schedules.svg"),
        ):
            command = [sys.executable, "-m", f"pathways.tools.{words[0]}", *words[1:]]
            subprocess.run(command, cwd=folder, env=environment, check=True, stderr=subprocess.PIPE)
        return (Path(folder) / "schedules.svg").read_text()


def ops_page() -> str:
    """Returns the reference of the `pw` dialect."""
    pieces = [
        NOTICE.format(source="`dialect/operations/ops.py`"),
        "# Operations of the `pw` dialect\n",
        contents(OPERATIONS),
        *(describe_op(name, op) for name, op in OPERATIONS.items()),
    ]
    return "\n".join(pieces)


def forms_page() -> str:
    """Returns the reference of the forms of the IR."""
    pieces = [
        NOTICE.format(source="`dialect/verification/forms.py`"),
        "# Forms of the IR\n",
        "In the order in which a program takes them. In every form, the contents of the module can be read: "
        "attributes are of their kinds, symbols are there, functions end with `func.return`, numbers are "
        "bounded. Computations hold StableHLO.\n",
        contents(FORMS),
        *map(describe_form, FORMS.values()),
    ]
    return "\n".join(pieces)


def describe_form(form: Form) -> str:
    """Returns the section of one form."""
    passes = [(name, registry.load(name)) for name in registry.names()]
    rows = [
        (
            f"allowed in {'functions of hosts' if form.hosts else '`@main`'}",
            ", ".join([*names_of(form.main), *["other dialects"] * form.glue]),
        ),
        ("allowed in the module", ", ".join(names_of(form.symbols))),
        ("must have", attributes_of(form.needs)),
        ("has not yet", attributes_of(form.lacks)),
        (
            "has together",
            attributes_of({op: sum(map(tuple, groups), ()) for op, groups in form.together.items()}),
        ),
        ("arguments, results", ", ".join(f"`{port}`" for port in form.ports)),
        ("values", "arrays: ranked tensors of static shape" if form.arrays else ""),
        ("left by", ", ".join(f"`{name}`" for name, kind in passes if kind.output_form is form)),
        ("taken by", ", ".join(f"`{name}`" for name, kind in passes if form in kind.input_forms)),
    ]
    relations = [
        inspect.cleandoc(relation.__doc__ or "") for relation in (*form.relations, *form.proofs, *form.joint)
    ]
    listed = "".join(f"- {relation}\n" for relation in relations)
    return "\n".join([f"## `{form.name}`\n", table(("", ""), [row for row in rows if row[1]]), listed])


def names_of(chosen: Collection[type[PwOp]]) -> list[str]:
    """Returns the names of operations in the order of their declaration."""
    return [f"`{name}`" for name, op in OPERATIONS.items() if op in chosen]


def attributes_of(fields: Mapping[type[PwOp], Iterable[str]]) -> str:
    """Returns attributes by operation, as Markdown."""
    return "; ".join(
        f"`{op.OPERATION_NAME}`: {', '.join(f'`{name}`' for name in names)}" for op, names in fields.items()
    )


def passes_page() -> str:
    """Returns the reference of the passes."""
    pieces = [
        NOTICE.format(source="the docstrings in `passes/`"),
        "# Passes\n",
        "In the order in which a program meets them. Options follow the pass name in braces, "
        "separated by spaces: `pw-opt -p 'pw-dce,pw-schedule{policy=program}'`.\n",
        contents(registry.names()),
        *(describe_pass(name, registry.load(name)) for name in registry.names()),
    ]
    return "\n".join(pieces)


def contents(names: Iterable[str]) -> str:
    """Returns a list of links to the headings of a page."""
    return "".join(f"- [`{name}`](#{re.sub('[^a-z0-9_-]', '', name)})\n" for name in names)


def describe_op(name: str, op: type[PwOp]) -> str:
    """Returns the section of one operation."""
    attributes = [
        (f"`{field.name}`", field.kind.description, "required" if field.required else "optional", field.doc)
        for field in op.fields().values()
    ]
    values = [
        (what, count(declared), declared.doc)
        for what, declared in (("operands", op.inputs), ("results", op.outputs))
        if declared.count != 0
    ]
    traits = "".join(f"- {trait.value}\n" for trait in Trait if trait in op.traits)
    return section(
        name,
        op,
        traits,
        table(("attribute", "kind", "", "meaning"), attributes),
        table(("values", "how many", "meaning"), values),
    )


def describe_pass(name: str, pass_type: type[Pass]) -> str:
    """Returns the section of one pass."""
    options = [
        (f"`{field.name.replace('_', '-')}`", f"`{shown(field)}`", field.metadata["help"])
        for field in options_of(pass_type).values()
    ]
    takes = " or ".join(f"`{form.name}`" for form in pass_type.input_forms)
    leaves = "the same" if pass_type.output_form is None else f"`{pass_type.output_form.name}`"
    forms = f"Takes the form {takes}; leaves {leaves}.\n"
    return section(name, pass_type, forms, table(("option", "default", "meaning"), options))


def section(name: str, described: type, *tables: str) -> str:
    """Returns a heading, the docstring, and the tables that are not empty."""
    return "\n".join([f"## `{name}`\n", prose(described), *filter(None, tables)])


def shown(field: dataclasses.Field[object]) -> str:
    """Returns the default of an option, as one would write it."""
    return registry.default_of(field) or "''"


def count(values: Values) -> str:
    """Returns how many operands or results an operation has."""
    return "any" if values.count is None else str(values.count)


def prose(described: type) -> str:
    """Returns a docstring as Markdown: `Requires:` and its like open a paragraph and are bold."""
    text = inspect.cleandoc(described.__doc__ or "")
    return re.sub(r"\n*^(Requires|Guarantees|Invariants):", r"\n\n**\1:**", text, flags=re.MULTILINE) + "\n"


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
