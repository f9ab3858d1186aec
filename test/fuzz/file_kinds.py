"""Files that the tools read: a seed for each, the command that reads it, and its mutations.

`test_mutate_files.py` checks that each flag and argument of a tool that names an input is here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
from corpus import ROOT
from file_mutations import (
    Mutation,
    mutate_archive,
    mutate_bundle,
    mutate_bytes,
    mutate_json,
    mutate_mlir,
    mutate_text,
)

from pathways.runtime.bundle.file import read
from pathways.runtime.hosts.launch.join_launcher import secret_of
from pathways.runtime.service import configuration
from pathways.runtime.service.protocol.tokens import credentials_of
from pathways.tools import pw_bundle, pw_compile, pw_opt, pw_run, pw_sim, pw_viz
from pathways.tools.common.errors import UserError
from pathways.tools.inputs.arrays import write_arrays
from pathways.tools.lsp.index import Index
from pathways.tools.lsp.worker import analyse

SEED = "{seed}"
"""Place of the mutated file in a command."""

Run = Callable[[str], int]
"""Function that reads a file as a tool does; returns the exit code of the tool."""

_TOOLS: Mapping[str, ModuleType] = {
    module.make_parser().prog: module for module in (pw_bundle, pw_compile, pw_opt, pw_run, pw_sim, pw_viz)
}


@dataclasses.dataclass(frozen=True)
class FileKind:
    """Kind of file that a tool reads.

    Attributes:
      input: the tool and the flag or argument that names the file, as in `pw-viz --trace`.
      seed: the name of the valid file.
      mutation: its mutations.
      run: reads a mutated file in this process.
      command: the command that reads it, with `SEED`; none for a part of a tool.
      is_trusted_to_mlir: whether MLIR's C++ may crash on it, which the parent of a tool reports in one line.
      runs_code: whether it is Python of the user, whose errors are quoted.
    """

    input: str
    seed: str
    mutation: Mutation
    run: Run
    command: str = ""
    is_trusted_to_mlir: bool = False
    runs_code: bool = False

    @property
    def name(self) -> str:
        """The name in reports."""
        return f"{self.input} {self.seed}"


def words_of(command: str, path: str) -> list[str]:
    """Returns the words of a command that reads a file."""
    return [word.replace(SEED, path) for word in command.split()]


def _run_of(command: str) -> Run:
    def run(path: str) -> int:
        tool, *words = words_of(command, path)
        return int(_TOOLS[tool].main(words))

    return run


def _of_tool(tool: str, work: Callable[[str], object]) -> Run:
    """Returns a run of the first part of a tool, where the rest starts processes."""

    def run(path: str) -> int:
        try:
            work(path)
        except (UserError, ValueError, OSError) as error:
            print(f"{tool}: error: {error}")
            return 1
        return 0

    return run


def _edit(path: str) -> None:
    """Does what `pw-lsp` does with a text, in both of its processes."""
    data = Path(path).read_bytes()
    json.dumps(analyse(data))
    index = Index(data.decode(errors="replace"))
    for token in index.tokens(0):
        index.definition(token)
        index.references(token)


def _kind(input: str, seed: str, mutation: Mutation, run: Run | str, **flags: bool) -> FileKind:
    if isinstance(run, str):
        return FileKind(input, seed, mutation, _run_of(run), run, **flags)
    return FileKind(input, seed, mutation, run, **flags)


_C, _P = {"is_trusted_to_mlir": True}, {"runs_code": True}
KINDS = (
    _kind("pw-viz --trace", "trace.json", mutate_json, "pw-viz --trace {seed} --step all -o o.html"),
    _kind("pw-viz --trace", "trace.json", mutate_text, "pw-viz --trace {seed} --step all -o o.svg"),
    _kind("pw-viz --times", "trace.json", mutate_json, "pw-viz two.mlir --times {seed} -o o.html"),
    _kind("pw-sim --times", "trace.json", mutate_json, "pw-sim two.mlir --times {seed}"),
    _kind("pw-sim --times", "trace.json", mutate_json, "pw-sim --times {seed} --save-times o.json"),
    _kind("pw-sim --times", "times.json", mutate_json, "pw-sim two.mlir --times {seed} --json"),
    _kind("pw-sim --times", "times.json", mutate_text, "pw-sim placed.mlir --schedule search --times {seed}"),
    _kind("pw-sim FILE", "two.mlir", mutate_mlir, "pw-sim {seed}", **_C),
    _kind("pw-sim FILE", "two.mlirbc", mutate_bytes, "pw-sim {seed}", **_C),
    _kind(
        "pw-sim FILE", "placed.mlir", mutate_mlir, "pw-sim {seed} --schedule program --schedule zb-h1", **_C
    ),
    _kind("pw-sim FILE", "two.pwb", mutate_bundle, "pw-sim {seed}", **_C),
    _kind("pw-sim --schedule", "order.csv", mutate_text, "pw-sim placed.mlir --schedule {seed}"),
    _kind("pw-viz FILE", "two.mlir", mutate_mlir, "pw-viz {seed} -o o.html", **_C),
    _kind("pw-viz FILE", "parts.mlir", mutate_mlir, "pw-viz {seed} --schedule 1f1b -o o.svg", **_C),
    _kind("pw-viz FILE", "two.pwb", mutate_bundle, "pw-viz {seed} -o o.html", **_C),
    _kind("pw-viz --schedule", "order.csv", mutate_text, "pw-viz placed.mlir --schedule {seed} -o o.html"),
    _kind("pw-opt FILE", "placed.mlir", mutate_mlir, "pw-opt {seed} --verify-roundtrip -o o.mlir", **_C),
    _kind("pw-opt FILE", "resource.mlir", mutate_text, "pw-opt {seed} --verify-roundtrip -o o.mlir", **_C),
    _kind("pw-opt FILE", "two.mlirbc", mutate_bytes, "pw-opt {seed} --pretty -o o.mlir", **_C),
    _kind("pw-opt FILE", "expected.mlir", mutate_text, "pw-opt {seed} --verify-diagnostics -o o.mlir", **_C),
    _kind("pw-opt FILE", "crash.mlir", mutate_text, "pw-opt {seed} --run-reproducer -o o.mlir", **_C),
    _kind(
        "pw-opt --pass-pipeline", "order.csv", mutate_text, "pw-opt sharded.mlir -p pw-schedule{file={seed}}"
    ),
    _kind("pw-compile TARGET", "placed.mlir", mutate_mlir, "pw-compile {seed} -o o.pwb", **_C),
    _kind("pw-compile TARGET", "two.mlir", mutate_mlir, "pw-compile {seed} --pretty", **_C),
    _kind("pw-compile TARGET", "step.py", mutate_text, "pw-compile {seed}:step --args-file args.json", **_P),
    _kind("pw-compile --schedule", "order.csv", mutate_text, "pw-compile placed.mlir --schedule {seed}"),
    _kind(
        "pw-compile --args-file", "args.json", mutate_json, "pw-compile step.py:step --args-file {seed}", **_P
    ),
    _kind(
        "pw-compile --args-file", "args.toml", mutate_text, "pw-compile step.py:step --args-file {seed}", **_P
    ),
    _kind("pw-run BUNDLE", "two.pwb", mutate_bundle, "pw-run {seed} --zeros --print", **_C),
    _kind("pw-run --inputs", "in.npz", mutate_archive, "pw-run two.pwb --inputs {seed} --print"),
    _kind("pw-run --input", "in.npy", mutate_bytes, "pw-run two.pwb --zeros --input @{seed} --print"),
    _kind("pw-bundle FILE", "two.pwb", mutate_bundle, "pw-bundle verify {seed}", **_C),
    _kind("pw-bundle FILE", "two.pwb", mutate_bundle, "pw-bundle inspect {seed}", **_C),
    _kind("pw-cluster FILE", "lab.toml", mutate_text, _of_tool("pw-cluster", configuration.read)),
    _kind("pw-cluster --token", "token", mutate_bytes, _of_tool("pw-cluster", credentials_of)),
    _kind("pw-worker --secret-file", "token", mutate_bytes, _of_tool("pw-worker", secret_of)),
    _kind("pw-lsp TEXT", "placed.mlir", mutate_mlir, _of_tool("pw-lsp", _edit), **_C),
)

OTHER_VALUES = frozenset(
    [
        *("pw-bundle inspect|verify", "pw-bundle --computation", "pw-cluster --name", "pw-cluster CLIENT"),
        *("pw-cluster CLUSTER", "pw-compile --args", "pw-compile --kwargs", "pw-compile --compile-to"),
        *("pw-compile --cpu-devices", "pw-compile --mlir-elide-elementsattrs-if-larger", "pw-lsp --timeout"),
        *(
            "pw-completion bash|zsh|fish",
            "pw-opt --mlir-elide-elementsattrs-if-larger",
            "pw-opt --verify-each",
            "pw-opt --load-pass-plugin",
        ),
        *("pw-opt --mlir-print-ir-before", "pw-opt --mlir-print-ir-after", "pw-run --feed", "pw-run --steps"),
        *("pw-run --random", "pw-run --cpu-devices", "pw-sim --steps", "pw-viz --step"),
        *(f"{tool} --{flag}" for tool in ("pw-sim", "pw-viz") for flag in ("taken", "latency", "bandwidth")),
        *("pw-sim --limits", "pw-viz --limits", "pw-proxy --listen", "pw-proxy --platform"),
        *("pw-proxy --cpu-devices", "pw-proxy --max-memory", "pw-proxy --files"),
        *("pw-proxy --hosts", "pw-proxy --devices-per-host", "pw-proxy --islands", "pw-proxy --launcher"),
        *("pw-proxy --address", "pw-proxy --bind", "pw-proxy --ports", "pw-proxy --start"),
        *("pw-proxy --python", "pw-proxy --secret-file"),
        *("pw-cluster --client", "pw-cluster --islands", "pw-cluster --files", "pw-cluster RULE=VALUE"),
        *("pw-cluster --by", "pw-cluster --grace", "pw-cluster ISLAND"),
        *(f"pw-cluster --{flag}" for flag in ("hosts", "devices-per-host", "cores", "device-memory", "pool")),
        *(f"pw-worker --{flag}" for flag in ("join", "host", "wait", "hosts", "drain", "folder")),
        # Outputs.
        *(
            "pw-compile -o",
            "pw-opt -o",
            "pw-opt --emit-irdl",
            "pw-opt --mlir-print-ir-tree-dir",
            "pw-run --trace",
        ),
        *("pw-opt --mlir-pass-pipeline-crash-reproducer", "pw-run --outputs", "pw-sim -o", "pw-sim --trace"),
        *("pw-sim --save-times", "pw-viz -o", "pw-cluster -o"),
    ]
)
"""Flags and arguments with a value that names no file to read."""

_STEP = """\
import pathways as pw
add = pw.jit(lambda state, x: state["w"] + x, devices=pw.make_virtual_device_set().add_slice((1,), ("x",)))
step = pw.program(lambda state, x, scale=1.0: add(state, x) * scale)
"""
_LAB = """\
listen = "127.0.0.1:7070"
token = "secret"
sharing = "fair"
heartbeat = 5
step_deadline = false
ports = [7000, 7100]
bind = "127.0.0.1"
[[islands]]
count = 2
hosts = 2
devices_per_host = 4
[clients.ann]
weight = 2
"""
_RESOURCE = """\
"pw.constant"() {sym_name = "c", value = dense_resource<r> : tensor<i32>} : () -> ()
{-# dialect_resources: { builtin: { r: "0x0400000001000000" } } #-}
"""
_EXPECTED = """\
// expected-error@+2 {{requires attribute `mesh`}}
// expected-error-re@below {{requires {{.*}} `sym_name`}}
"pw.slice"() : () -> ()
"""


def write_seeds(folder: Path) -> None:
    """Writes the seeds, with the tools themselves, and what their commands read besides."""
    examples = ROOT / "test" / "tools" / "pw_sim"
    for name, example in (("placed.mlir", "compare.mlir"), ("parts.mlir", "compare_parts.mlir")):
        text = re.sub(r"(?m)^//.*\n", "", (examples / example).read_text())
        (folder / name).write_text(text.strip("\n") + "\n")
    (folder / "times.json").write_bytes((examples / "Inputs" / "halves.json").read_bytes())
    texts = {"step.py": _STEP, "lab.toml": _LAB, "resource.mlir": _RESOURCE, "expected.mlir": _EXPECTED}
    texts["order.csv"] = "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"
    texts["args.json"] = '{"args": [{"w": "f32[2]"}, "f32[2]"], "kwargs": {"scale": 0.5}}'
    texts["args.toml"] = 'args = [{w = "f32[2]"}, "f32[2]"]\nkwargs = {scale = "f32[]"}\n'
    texts["token"] = "0123456789abcdef" * 4 + "\n"
    for name, text in texts.items():
        (folder / name).write_text(text)
    with contextlib.chdir(folder):
        for command in (
            "pw-opt placed.mlir -p pw-split-backward,pw-propagate-shardings,pw-lower-transfers,"
            "pw-unroll-microbatches -o sharded.mlir",
            "pw-compile placed.mlir --schedule 1f1b -o two.mlir",
            "pw-compile two.mlir -o two.pwb",
            "pw-opt two.mlir --emit-bytecode -o two.mlirbc",
            "pw-sim two.mlir --trace trace.json",
        ):
            assert _run_of(command)("") == 0, command
        _run_of("pw-opt two.mlir --pw-schedule --mlir-pass-pipeline-crash-reproducer crash.mlir")("")
        arguments = {leaf.name: leaf.buffer for leaf in read("two.pwb").manifest.arguments}
        arrays = {name: np.zeros(type_.shape, type_.dtype) for name, type_ in arguments.items()}
        write_arrays("in.npz", arrays)
        buffer = io.BytesIO()
        np.save(buffer, next(iter(arrays.values())))
        Path("in.npy").write_bytes(buffer.getvalue())
