"""Reference of configuration: environment variables, options, launchers, keys of files, flags of tools."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from collections.abc import Iterable

import msgspec
import tables

import pathways as pw
from pathways.runtime.service import configuration
from pathways.tools.common.flags import FlagParser
from pathways.tools.pw_completion import make_parsers

VARIABLES = {
    "JAX_NUM_CPU_DEVICES": "JAX's own: the number of CPU devices of a process",
    "JAX_PLATFORMS": "JAX's own: the platforms to use, as in `cpu` or `cuda,cpu`",
    "PW_CACHE_DIR": "the folder of compiled code, `~/.cache/pathways` by default; empty for none",
    "PW_CACHE_LIMIT": "the size of that folder, as in `500M`; `1G` by default",
    "PW_CHECK_COUNTS": "`1`: counts of `pw.all_to_all` that are out of range are errors",
    "PW_CLUSTERS": "the folder of the clusters of this user, `~/.local/state/pathways/clusters` by default",
    "PW_DUMP_TO": "a folder to which each form of each program is written",
    "PW_MEMORY_LIMIT": "the memory of a tool, as in `16G`; half of the machine's by default, empty for any",
    "PW_PROXY_COPY_NUMPY": "`0`: programs of `pw-proxy` do not copy NumPy arrays at calls",
    "PW_READY_DIR": "a folder with a file for each worker of this machine that is ready",
    "PW_TRACE": "a file to which the trace of the whole process is written",
}
"""Environment variables and their meanings; a test compares them with the code."""

LAUNCHERS = (pw.Ssh, pw.Slurm, pw.Ray, pw.Join, pw.Island)
TABLES = {
    "Keys of the file": configuration.ClusterFile,
    "`[[islands]]`": configuration.IslandTable,
    "`[clients.NAME]`": configuration.ClientTable,
    "`[metrics]`": configuration.MetricsTable,
}


def page() -> str:
    """Returns the page, as Markdown."""
    pieces = [
        "# Configuration\n",
        "All settings in one place. Programs set devices by `pw.connect`, whose help says which keywords go "
        "together ([which door?](which_door.md)); keys of the file of a cluster have the same names.\n",
        "## Environment variables\n",
        tables.table(("variable", "meaning"), ((f"`{name}`", text) for name, text in VARIABLES.items())),
        "## `pw.connect`\n",
        _attributes(pw.connect, "Args"),
        "## `pw.HostOptions`\n",
        _attributes(pw.HostOptions),
        *(piece for record in LAUNCHERS for piece in (f"## `pw.{record.__name__}`\n", _attributes(record))),
        "## The file of a cluster\n",
        "`pw-cluster up lab.toml` ([service.md](service.md#start-a-cluster)). Paths are relative to the "
        "folder of the file; `false` means never.\n",
        *(piece for name, table in TABLES.items() for piece in (f"### {name}\n", _attributes(table))),
        "## Flags of the tools\n",
        *(piece for parser in make_parsers() for piece in _flags(parser)),
    ]
    return "\n".join(pieces)


def _attributes(described: object, section: str = "Attributes") -> str:
    """Returns a table of the attributes in a docstring, with their defaults."""
    text = inspect.cleandoc(inspect.getdoc(described) or "")
    (lines,) = re.findall(rf"^{section}:\n((?:  .*\n|\n(?=  ))*)", text + "\n", re.MULTILINE)
    entries = re.findall(r"^  (\w+): (.*(?:\n    .*)*)", lines, re.MULTILINE)
    defaults = _defaults(described)
    rows = (
        (f"`{name}`", defaults.get(name, ""), _linked(" ".join(meaning.split())))
        for name, meaning in entries
        if name != "unknown"
    )
    return tables.table(("name", "default", "meaning"), rows)


def _linked(meaning: str) -> str:
    """Returns a meaning with links where it refers to the table of another record."""
    names = "|".join(record.__name__ for record in (pw.connect, pw.HostOptions, *LAUNCHERS))
    return re.sub(
        rf"(?<=see |and )`(?:pathways\.)?({names})`",
        lambda match: f"[{match[0]}](#pw{match[1].lower()})",
        meaning,
    )


def _defaults(described: object) -> dict[str, str]:
    """Returns the defaults of a record or of a function, as one would write them; None is left out."""
    values: dict[str, object] = {}
    if isinstance(described, type) and issubclass(described, msgspec.Struct):
        values = {field.name: field.default for field in msgspec.structs.fields(described)}
    elif dataclasses.is_dataclass(described):
        values = {field.name: field.default for field in dataclasses.fields(described)}
    missing = (None, dataclasses.MISSING, msgspec.NODEFAULT)
    return {name: f"`{value!r}`" for name, value in values.items() if value not in missing}


def _flags(parser: FlagParser) -> Iterable[str]:
    yield f"### `{parser.prog}`\n"
    for name, described in {"": parser, **parser.commands}.items():
        rows = [
            (
                ", ".join(f"`{flag}`" for flag in action.option_strings)
                + (f" `{action.metavar}`" if action.metavar else ""),
                action.help % vars(action) if action.help else "",
            )
            for action in described.actions
            if action.option_strings and action.help != argparse.SUPPRESS
        ]
        if rows:
            yield tables.table((f"`{parser.prog} {name}`" if name else "flag", "meaning"), rows)
