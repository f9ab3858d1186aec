"""Examples as files whose first line has their passes and their verdict."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from buckets import Bucket
from cases import Case, Verdict
from random_pipelines import full_pipeline

from pathways.passes.manager import registry

_FIRST = re.compile(rb"// pw-opt (.*?)   was: .*\n")


def write(bucket: Bucket, folder: Path) -> Path:
    """Writes the example of a bucket; those of failures of MLIR itself go to a folder below."""
    folder = folder / "stock" if bucket.stock else folder
    folder.mkdir(parents=True, exist_ok=True)
    case, verdict = bucket.case, bucket.verdict
    name = re.sub(r"\W+", "_", f"{verdict.kind}_{verdict.bucket}").strip("_")[:100]
    path = folder / f"{name}.{bucket.number}.mlir"
    arguments = shlex.join(["-p", ",".join(case.pipeline), *case.flags])
    first = f"// pw-opt {arguments}   was: {verdict.kind} {verdict.bucket}, case {bucket.number}\n"
    end = b"" if case.data.startswith(b"ML\xefR") or case.data.endswith(b"\n") else b"\n"
    path.write_bytes(first.encode() + case.data + end)
    if "order.csv" in arguments:
        path.with_suffix(".csv").write_bytes(case.order.encode("latin-1"))
    return path


def read(folder: Path) -> Iterator[tuple[Path, Case]]:
    """Yields the cases of the files of a folder, with the passes of the first line, or with all passes."""
    for path in sorted(folder.rglob("*.mlir")):
        data = path.read_bytes()
        first = _FIRST.match(data)
        if first is not None and data[first.end() :].startswith(b"ML\xefR"):
            data = data[first.end() :]
        table = path.with_suffix(".csv")
        order = table.read_text("latin-1") if table.exists() else ""
        arguments = shlex.split(first[1].decode()) if first is not None and b"-p " in first[1] else []
        if arguments:
            pipelines = [tuple(split_pipeline(arguments[1]))]
        else:
            text = data.decode(errors="replace")
            pipelines = [(), *((name,) for name in registry.names()), full_pipeline(text), full_pipeline("")]
        for pipeline in pipelines:
            yield path, Case(data, pipeline, tuple(arguments[2:]), order)


def cause(verdict: Verdict) -> str:
    """Returns the cause of a failure of MLIR itself: its kind, and the work at that moment."""
    kind = verdict.bucket.split()[0] if verdict.kind == "crash" else verdict.kind
    return f"{kind} while {verdict.note}"


def known() -> set[str]:
    """Returns the causes that `stock/README.md` lists, one in each heading."""
    return set(re.findall(r"(?m)^## `(.*)`$", (Path(__file__).parent / "stock" / "README.md").read_text()))


def split_pipeline(text: str) -> list[str]:
    """Returns the passes of a pipeline, each with its options."""
    return [name for name in re.findall(r"(?:[^,{(]|\{[^}]*\}|\([^)]*\))+", text) if name]
