"""Loading of the bundle of `pw-run`, and its steps."""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pathways.runtime.bundle.file import Bundle, read
from pathways.runtime.bundle.manifest import BundleError, Leaf
from pathways.runtime.plan.plan import ArrayType
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import check_extension, write_output
from pathways.tools.common.flags import MAX_CPU_DEVICES
from pathways.tools.common.supervisor import doing
from pathways.tools.inputs.arrays import generated_arrays, read_arrays, write_arrays
from pathways.tools.inputs.values import read_values, value_text

if TYPE_CHECKING:
    from pathways.compiler.loaded import LoadedProgram

_MAX_DEFAULT_DEVICES = 512
"""Limit of CPU devices without --cpu-devices."""

_WIDE = ("int64", "uint64", "float64", "complex128")


def run(options: argparse.Namespace) -> int:
    """Runs the tool for its flags; returns the exit code."""
    doing(f"reading {options.bundle}")
    bundle = _read(options.bundle)
    manifest = bundle.manifest
    feeds = _feeds(options.feed, _types(manifest.results), _types(manifest.arguments))
    arrays = _arrays(options, {leaf.name: leaf.buffer for leaf in manifest.arguments})
    loaded = _load(options, bundle)
    doing(f"running {options.bundle}")
    try:
        results = _run(loaded, arrays, feeds, options)
    except BrokenPipeError:
        raise
    except (RuntimeError, OSError) as error:
        # An error of XLA, such as too little memory, or of writing a trace.
        raise UserError(f"cannot run {options.bundle}: {error}") from None
    if options.shown:
        _print("\n".join(f"{name}: {value_text(array)}" for name, array in results.items()))
    if options.outputs:
        check_extension("pw-run", options.outputs, "arrays", ".npz")
        write_arrays(options.outputs, results)
    return 0


def _read(path: str) -> Bundle:
    try:
        return read(path)
    except BundleError as error:
        raise UserError(str(error)) from None


def _arrays(options: argparse.Namespace, inputs: Mapping[str, ArrayType]) -> dict[str, np.ndarray]:
    """Returns an array for each argument: from the file, or generated, if the flags request it."""
    arrays = read_values(options.values, inputs)
    stored = read_arrays(options.inputs, inputs) if options.inputs else {}
    if twice := sorted(arrays.keys() & stored.keys()):
        raise UserError(f"{twice[0]} is given by both --input and --inputs")
    arrays |= stored
    missing = {name: type_ for name, type_ in inputs.items() if name not in arrays}
    if missing and not options.zeros and options.random is None:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        named = ", ".join(list(missing)[:3])
        raise UserError(f"no input for {named}{more}; give --input, --inputs FILE, --zeros or --random SEED")
    try:
        return arrays | generated_arrays(missing, options.random)
    except MemoryError:
        raise UserError(f"the inputs of {options.bundle} do not fit into memory") from None


def _load(options: argparse.Namespace, bundle: Bundle) -> LoadedProgram:
    """Loads the bundle, on as many CPU devices as it needs if its platform is cpu."""
    doing("importing JAX")
    import jax

    from pathways.compiler.loaded import load_bundle
    from pathways.runtime.local.devices import connect

    manifest = bundle.manifest
    if any(leaf.dtype in _WIDE for leaf in (*manifest.arguments, *manifest.results)):
        jax.config.update("jax_enable_x64", True)
    began = time.perf_counter()
    try:
        if manifest.platform == "cpu":
            connect(cpu_devices=options.cpu_devices or _devices_needed(bundle))
        else:
            connect(platform=manifest.platform)
        doing(f"loading {options.bundle}")
        loaded = load_bundle(bundle, trust=options.trust)
    except (RuntimeError, ValueError) as error:
        # An error of the bundle, the cluster, resources or XLA; or JAX lacks the platform.
        raise UserError(str(error)) from None
    stored, compiled = loaded.origins
    _print(
        f"{loaded.name}: loaded in {time.perf_counter() - began:.2f} s, "
        f"{stored} executables stored, {compiled} compiled"
    )
    return loaded


def _print(line: str) -> None:
    """Writes a line to standard output, which may be full."""
    write_output("-", f"{line}\n".encode())


def _devices_needed(bundle: Bundle) -> int:
    """Returns the number of CPU devices that the slices of a bundle need, if that is reasonable."""
    needed = sum(math.prod(spec.shape) for spec in bundle.manifest.slices)
    if needed > _MAX_DEFAULT_DEVICES:
        raise UserError(
            f"{bundle.path} needs {needed} devices; --cpu-devices makes up to {MAX_CPU_DEVICES} of the CPU"
        )
    return needed


def _types(leaves: Sequence[Leaf]) -> dict[str, ArrayType]:
    return {leaf.name: ArrayType(leaf.shape, leaf.dtype) for leaf in leaves}


def _feeds(
    texts: Sequence[str], outputs: Mapping[str, ArrayType], inputs: Mapping[str, ArrayType]
) -> dict[str, str]:
    """Returns, for each argument that is fed, the result that it gets."""
    feeds: dict[str, str] = {}
    for text in texts:
        source, colon, target = text.rpartition(":")
        if not (colon and source and target):
            raise UserError(f"--feed {text}: expected OUT:IN, a result and an argument")
        sources, targets = _under(source, outputs), _under(target, inputs)
        if not sources or not targets:
            kind, name = ("result", source) if not sources else ("argument", target)
            raise UserError(f"--feed {text}: there is no {kind} {name}")
        if sources.keys() != targets.keys():
            odd = min(sources.keys() ^ targets.keys())
            raise UserError(f"--feed {text}: only one of the two has {source}{odd}")
        for rest, name in targets.items():
            have, want = outputs[sources[rest]], inputs[name]
            if have != want:
                raise UserError(
                    f"--feed {text}: {sources[rest]} is {_text(have)}, but {name} is {_text(want)}"
                )
            if name in feeds:
                raise UserError(f"--feed {text}: {name} is fed already, with {feeds[name]}")
            feeds[name] = sources[rest]
    return feeds


def _under(root: str, names: Mapping[str, ArrayType]) -> dict[str, str]:
    """Returns the names at and below a name, by their suffixes."""
    return {name[len(root) :]: name for name in names if name == root or name.startswith(f"{root}.")}


def _text(type_: ArrayType) -> str:
    return f"{type_.dtype}{list(type_.shape)}"


def _run(
    loaded: LoadedProgram,
    arrays: Mapping[str, np.ndarray],
    feeds: Mapping[str, str],
    options: argparse.Namespace,
) -> dict[str, np.ndarray]:
    """Runs the steps and prints their speed; returns the results of the last one."""
    import jax

    inputs = loaded.from_buffers(arrays)
    # Arguments that the program consumes stay on the host, so that every step gets a new copy.
    undonated = {name: array for name, array in inputs.items() if name not in loaded.donated}
    inputs |= loaded.place_by_name(undonated)
    cost = loaded.cost_analysis()
    steps = options.steps
    with _tracing(options.trace):
        began = time.perf_counter()
        for _ in range(steps):
            results = loaded.by_name(inputs)
            inputs |= {name: results[source] for name, source in feeds.items()}
        jax.block_until_ready(list(results.values()))
    took = time.perf_counter() - began
    _print(f"{steps} step{'s' if steps > 1 else ''} in {took:.3f} s: {steps / took:,.1f} steps/s")
    once = "chunk" if loaded.in_parts else "step"
    _print(
        f"each {once}: {cost['launches']} launches, {cost['transfers']} transfers, "
        f"{cost['bytes transferred']:,} bytes between slices"
    )
    return loaded.to_buffers(results)


def _tracing(path: str | None) -> contextlib.AbstractContextManager[None]:
    """Records all steps in a file, if there is one."""
    if path is None:
        return contextlib.nullcontext()
    from pathways.runtime.traces.file_trace import trace

    try:
        with Path(path).open("ab"):
            pass
    except OSError as error:
        raise UserError(f"cannot write trace '{path}': {error.strerror}") from None
    return trace(path)
