"""Output and checks of `pw-bundle`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from pathways.runtime.bundle.examine import examine
from pathways.runtime.bundle.file import Bundle, read
from pathways.runtime.bundle.manifest import MANIFEST, BundleError, Leaf
from pathways.runtime.bundle.program import artifact_of
from pathways.runtime.resources.tables import size, table
from pathways.tools.common import supervisor
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import write_output
from pathways.tools.inputs.untrusted_bundles import within_allowance


def run(options: argparse.Namespace) -> int:
    """Runs the tool for its flags; returns the exit code."""
    supervisor.doing(f"reading {options.bundle}")
    try:
        bundle = read(options.bundle)
        text = _verify(bundle) if options.command == "verify" else _inspect(bundle, options)
    except BundleError as error:
        raise UserError(str(error)) from None
    write_output("-", f"{text}\n".encode())
    return 0


def _verify(bundle: Bundle) -> str:
    with within_allowance(bundle):
        examine(bundle)
    unchecked = f"; {len(bundle.executables)} executables not checked" if bundle.executables else ""
    return f"{bundle.path}: valid ({len(bundle.members)} members{unchecked})"


def _inspect(bundle: Bundle, options: argparse.Namespace) -> str:
    if options.manifest:
        return bytes(bundle.members[MANIFEST]).decode().rstrip()
    if options.program:
        return _shown(bytes(bundle.program).decode(errors="replace"))
    if options.computation is not None:
        return _shown(_computation(bundle, options.computation))
    return "\n\n".join(_sections(bundle))


def _computation(bundle: Bundle, name: str) -> str:
    if name not in bundle.artifacts():
        raise UserError(f"there is no computation '{name}'; there are {', '.join(bundle.artifacts())}")
    supervisor.doing(f"reading computation {name}")
    with within_allowance(bundle):
        return str(artifact_of(bundle, name))


def _shown(text: str) -> str:
    """Returns text from the file without control characters of terminals."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    ).rstrip()


def _sections(bundle: Bundle) -> Iterator[str]:
    manifest = bundle.manifest
    versions = ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items()))
    about = [
        ("platform", manifest.platform),
        ("made with", versions),
        ("digest", bundle.digest),
        ("custom calls", ", ".join(manifest.custom_calls) or "none"),
    ]
    yield f"program {manifest.name}\n{table(about)}"
    yield table(
        [
            ("slice", "mesh", "island"),
            *(_slice_row(s.name, s.axis_names, s.shape, s.island) for s in manifest.slices),
        ]
    )
    yield table([("argument", "type", "slices", ""), *map(_leaf_row, manifest.arguments)])
    yield table([("result", "type", "slices"), *(_leaf_row(leaf)[:3] for leaf in manifest.results)])
    code: dict[str, int] = {}
    for listed, raw in bundle.executables:
        code[listed.computation] = code.get(listed.computation, 0) + len(raw)
    yield table(
        [
            ("computation", "artifact", "executables"),
            *(
                (name, size(len(data)), size(code[name]) if name in code else "-")
                for name, data in bundle.artifacts().items()
            ),
        ]
    )
    if manifest.constants:
        rows = [(c.name, f"{c.dtype}{list(c.shape)}") for c in manifest.constants]
        yield table([("constant", "type"), *rows])


def _slice_row(
    name: str, axes: Sequence[str], shape: Sequence[int], island: str | None
) -> tuple[str, str, str]:
    mesh = " ".join(f"{axis}={n}" for axis, n in zip(axes, shape, strict=True))
    return name, mesh, island or "any"


def _leaf_row(leaf: Leaf) -> tuple[str, str, str, str]:
    weak = " (weak)" if leaf.weak_type else ""
    slices = " ".join(leaf.slices) or "unread"
    return leaf.name, f"{leaf.dtype}{list(leaf.shape)}{weak}", slices, "donated" if leaf.donated else ""
