"""Corpus of mutations: every `.mlir` file of the project, forms of programs, and the words in them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import syntax
from forked import run_all

from pathways.dialect import make_context
from pathways.passes.manager.text import PipelineError, parse_pipeline
from pathways.tools import pw_opt

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "fuzz" / "seeds"
SOURCES = (
    *("compiler/**/*.py", "dialect/*.py", "passes/**/*.py", "test/compiler/**/*.py", "test/fuzz/programs.py"),
    *("test/**/*.mlir", "examples/*.mlir", "examples/*.py"),
)
"""Patterns of the files that seeds depend on."""

PRINTED = ("examples/figure2.py", "examples/transformer_sharded.py")
"""Examples that write every form of their programs; the forms of other examples are too large to be quick."""

_LARGEST = 100_000
"""Maximum of bytes of a seed: a larger one takes longer than many small ones, and tests no more."""


@dataclasses.dataclass(frozen=True)
class Seed:
    """Module as text or bytecode, with the pipelines that its file runs."""

    name: str
    data: bytes
    pipelines: tuple[str, ...] = ()

    @property
    def is_bytecode(self) -> bool:
        """Whether it is bytecode and not text."""
        return self.data.startswith(b"ML\xefR")

    @functools.cached_property
    def text(self) -> str:
        """The text."""
        return self.data.decode()


@dataclasses.dataclass(frozen=True)
class Corpus:
    """All seeds, in a fixed order, and the words in them.

    Attributes:
      texts: seeds in text.
      bytecodes: seeds in bytecode.
      values: the values of attributes by key.
      keys: the keys of attributes, each as often as it is used.
      types: the types of tensors.
      functions: single functions as text.
      symbols: single operations that declare symbols, as text.
    """

    texts: tuple[Seed, ...]
    bytecodes: tuple[Seed, ...]
    values: dict[str, tuple[str, ...]]
    keys: tuple[str, ...]
    types: tuple[str, ...]
    functions: tuple[str, ...]
    symbols: tuple[str, ...]

    @functools.cached_property
    def weights(self) -> tuple[float, ...]:
        """The weight of each text: small ones test more in less time."""
        return tuple(min(1.0, (1500 / len(seed.data)) ** 0.5) for seed in self.texts)


def read_corpus() -> Corpus:
    """Returns the corpus of the current sources; the first call after a change takes some seconds."""
    _refresh()
    texts = [
        *_written(),
        *(
            Seed(f"{path.parent.name}/{path.stem}", path.read_bytes())
            for path in sorted(FOLDER.glob("*/*.mlir"))
        ),
    ]
    bytecodes = [Seed(path.stem, path.read_bytes()) for path in sorted(FOLDER.glob("*.bytecode"))]
    return corpus_of([seed for seed in texts if 0 < len(seed.data) <= _LARGEST], bytecodes)


def corpus_of(texts: Sequence[Seed], bytecodes: Sequence[Seed] = ()) -> Corpus:
    """Returns the corpus of some seeds."""
    values: dict[str, dict[str, None]] = {}
    keys, types, functions, symbols = [], dict[str, None](), [], []
    for seed in texts:
        for dictionary in syntax.dictionaries(seed.text):
            for attribute in dictionary.attributes:
                keys.append(attribute.key)
                values.setdefault(attribute.key, {})[attribute.value or "unit"] = None
        types |= dict.fromkeys(syntax.TENSOR.findall(seed.text))
        lines = seed.text.split("\n")
        for statement in syntax.statements(lines):
            whole = "\n".join(lines[statement.first : statement.last + 1])
            if "func.func" in lines[statement.first]:
                functions.append(whole)
            elif "sym_name" in whole or "sdy.mesh" in whole:
                symbols.append(whole)
    return Corpus(
        tuple(texts),
        tuple(bytecodes),
        {key: tuple(written) for key, written in values.items()},
        tuple(keys),
        tuple(types),
        tuple(functions),
        tuple(symbols),
    )


def _written() -> Iterator[Seed]:
    """Yields the pieces of the project's own files, without their comments."""
    for path in sorted([*ROOT.glob("test/**/*.mlir"), *ROOT.glob("examples/*.mlir")]):
        # `stock` has files that crash MLIR itself.
        if not {"Inputs", "Output", "stock"}.isdisjoint(path.parts):
            continue
        text = path.read_text()
        pipelines = tuple(_pipelines(text))
        for number, piece in enumerate(re.split(r"(?m)^// -----.*\n", text)):
            bare = re.sub(r"(?m)^\s*//.*\n", "", piece).strip("\n")
            if bare:
                yield Seed(f"{path.relative_to(ROOT)}#{number}", f"{bare}\n".encode(), pipelines)


def _pipelines(text: str) -> Iterator[str]:
    """Yields the pipelines in the RUN lines of a file."""
    for command in re.findall(r"(?m)^// RUN: .*?pw-opt (.*)$", text):
        passes = [
            name + (f"{{{value}}}" if value else "")
            for name, value in re.findall(
                r"(?<!\S)--?((?:pw|sdy)-[\w-]+|cse|canonicalize)(?:=(\S+))?", command
            )
        ]
        passes += re.findall(r"(?<!\S)-p '([^']*)'", command)
        if passes and _is_pipeline(",".join(passes)):
            yield ",".join(passes)


def _is_pipeline(text: str) -> bool:
    try:
        parse_pipeline(text, make_context())
    except PipelineError:
        return False
    return True


def _refresh() -> None:
    """Creates the folder of seeds again if sources have changed."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    key = FOLDER / "key"
    digest.update(Path(__file__).read_bytes())
    if key.exists() and key.read_text() == digest.hexdigest():
        return
    print("making seeds ...", file=sys.stderr)
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "lowered").mkdir(parents=True)
    _run(Path(__file__).parent / "programs.py", str(FOLDER / "lowered"))
    for number, program in enumerate([*PRINTED, *sorted(ROOT.glob("test/compiler/lowering/*.py"))]):
        _run(ROOT / program, forms=FOLDER / f"printed{number}")
    _print_otherwise()
    key.write_text(digest.hexdigest())


def _run(program: Path, *arguments: str, forms: Path | None = None) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PW_CACHE_DIR": ""}
    if forms is not None:
        environment["PW_DUMP_TO"] = str(forms)
    command = [sys.executable, program, *arguments]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _print_otherwise() -> None:
    """Writes each seed in MLIR's generic form and as bytecode too, where it is valid."""
    (FOLDER / "generic").mkdir()
    lowered = [Seed(path.stem, path.read_bytes()) for path in sorted(FOLDER.glob("*/*.mlir"))]
    seeds = [*_written(), *lowered]
    for _ in run_all([(None, functools.partial(_print_one, seed)) for seed in seeds], jobs=2, seconds=30):
        pass


def _print_one(seed: Seed, folder: Path, note: Callable[[str], None]) -> None:
    os.chdir(folder)  # Bytecode has the name of the file, which must not depend on the folder.
    Path("seed.mlir").write_bytes(seed.data)
    name = re.sub(r"[^\w.]+", "_", seed.name)
    for target, flag in (
        (FOLDER / "generic" / f"{name}.mlir", "--mlir-print-op-generic"),
        (FOLDER / f"{name}.bytecode", "--emit-bytecode"),
    ):
        with contextlib.suppress(Exception):  # An input that is rejected is no seed.
            pw_opt.main(["seed.mlir", "--verify-each=0", flag, "-o", str(target)])
