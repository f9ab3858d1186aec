"""`pw-run` runs a bundle: no code of the program, no tracing."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pathways.runtime.bundle.file import Bundle, read
from pathways.runtime.bundle.manifest import BundleError, Leaf
from pathways.runtime.plan.plan import ArrayType
from pathways.tools import supervisor
from pathways.tools.arguments import MOST_CPU_DEVICES, Parser, count, cpu_devices, version_of
from pathways.tools.arrays import made_up, read_arrays, write_arrays
from pathways.tools.files import UserError

if TYPE_CHECKING:
    from pathways.compiler.loaded import LoadedProgram

_DESCRIPTION = """\
Runs a program from a bundle, made by pw-compile -o or Compiled.save. Arrays in files are named as the bundle
names its arguments and results (pw-bundle inspect): x, params.w, result.0.
"""

_EXAMPLES = """\
examples:
  pw-run model.pwb --inputs in.npz --outputs out.npz
  pw-run step.pwb --random 0 --steps 100 --feed result.0:state

--feed OUT:IN passes a result on to the next step: a leaf, or all leaves under a name to those under another.
"""

_UNASKED = 512
"""The most CPU devices that are made without --cpu-devices."""

_WIDE = ("int64", "uint64", "float64", "complex128")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns its exit code: 0, 1 for any error, 130 when interrupted.

    Args:
      arguments: those of the command line when left out, in a process that can report a crash of MLIR or
        XLA; otherwise the tool runs in this process.
    """
    if arguments is None:
        return supervisor.supervise("pw-run", lambda: _guarded(sys.argv[1:]))
    return _guarded(arguments)


def _guarded(arguments: Sequence[str]) -> int:
    return supervisor.in_one_line("pw-run", lambda: _main(arguments))


def _main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.help or options.version:
        sys.stdout.write(version_of("pw-run") if options.version else _parser().format_help())
        return 0
    if options.bundle is None:
        raise UserError("expected a bundle; see pw-run --help")
    if options.steps < 1:
        raise UserError("--steps 0: expected at least 1")
    supervisor.doing(f"reading {options.bundle}")
    bundle = _read(options.bundle)
    manifest = bundle.manifest
    feeds = _feeds(options.feed, _types(manifest.results), _types(manifest.arguments))
    arrays = _arrays(options, {leaf.name: leaf.buffer for leaf in manifest.arguments})
    loaded = _load(options, bundle)
    supervisor.doing(f"running {options.bundle}")
    try:
        results = _run(loaded, arrays, feeds, options)
    except (RuntimeError, OSError) as error:
        # XLA's, such as too little memory, or of writing a trace.
        raise UserError(f"cannot run {options.bundle}: {error}") from None
    if options.outputs:
        write_arrays(options.outputs, results)
    return 0


def _read(path: str) -> Bundle:
    try:
        return read(path)
    except BundleError as error:
        raise UserError(str(error)) from None


def _arrays(options: argparse.Namespace, inputs: Mapping[str, ArrayType]) -> dict[str, np.ndarray]:
    """An array for each argument: from the file, or else made up, if that is wanted."""
    given = read_arrays(options.inputs, inputs) if options.inputs else {}
    missing = {name: type_ for name, type_ in inputs.items() if name not in given}
    if missing and not options.zeros and options.random is None:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        named = ", ".join(list(missing)[:3])
        raise UserError(f"no input for {named}{more}; give --inputs FILE, --zeros or --random SEED")
    try:
        return given | made_up(missing, options.random)
    except MemoryError:
        raise UserError(f"the inputs of {options.bundle} do not fit into memory") from None


def _load(options: argparse.Namespace, bundle: Bundle) -> LoadedProgram:
    """Loads the bundle, on as many CPU devices as it needs where its platform is cpu."""
    # XLA would warn of each sharded computation that it is from a file.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    supervisor.doing("importing JAX")
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
        supervisor.doing(f"loading {options.bundle}")
        loaded = load_bundle(bundle, trust=options.trust)
    except (RuntimeError, ValueError) as error:
        # Of the bundle, the cluster, resources or XLA; or JAX has no such platform.
        raise UserError(str(error)) from None
    stored, compiled = loaded.origins
    print(
        f"{loaded.name}: loaded in {time.perf_counter() - began:.2f} s, "
        f"{stored} executables stored, {compiled} compiled"
    )
    return loaded


def _devices_needed(bundle: Bundle) -> int:
    """The number of CPU devices that the slices of a bundle take together, if that is reasonable."""
    needed = sum(math.prod(entry.shape) for entry in bundle.manifest.slices)
    if needed > _UNASKED:
        raise UserError(
            f"{bundle.path} needs {needed} devices; --cpu-devices makes up to {MOST_CPU_DEVICES} of the CPU"
        )
    return needed


def _types(leaves: Sequence[Leaf]) -> dict[str, ArrayType]:
    return {leaf.name: ArrayType(leaf.shape, leaf.dtype) for leaf in leaves}


def _feeds(
    texts: Sequence[str], outputs: Mapping[str, ArrayType], inputs: Mapping[str, ArrayType]
) -> dict[str, str]:
    """For each argument that is fed, the result that it gets."""
    feeds: dict[str, str] = {}
    for text in texts:
        source, colon, target = text.rpartition(":")
        if not (colon and source and target):
            raise UserError(f"--feed {text}: expected OUT:IN, a result and an argument")
        sources, targets = _under(source, outputs), _under(target, inputs)
        if not sources or not targets:
            what, name = ("result", source) if not sources else ("argument", target)
            raise UserError(f"--feed {text}: there is no {what} {name}")
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
    """The names at and below a name, by what follows it."""
    return {name[len(root) :]: name for name in names if name == root or name.startswith(f"{root}.")}


def _text(type_: ArrayType) -> str:
    return f"{type_.dtype}{list(type_.shape)}"


def _run(
    loaded: LoadedProgram,
    arrays: Mapping[str, np.ndarray],
    feeds: Mapping[str, str],
    options: argparse.Namespace,
) -> dict[str, np.ndarray]:
    """Runs the steps and says how fast they were; returns the results of the last one."""
    import jax

    inputs = loaded.from_buffers(arrays)
    # What the program consumes stays on the host, for every step to get its own copy.
    kept = {name: array for name, array in inputs.items() if name not in loaded.donated}
    inputs |= loaded.place(kept)
    cost = loaded.cost_analysis()
    steps = options.steps
    with _tracing(options.trace):
        began = time.perf_counter()
        for _ in range(steps):
            results = loaded.by_name(inputs)
            inputs |= {name: results[source] for name, source in feeds.items()}
        jax.block_until_ready(list(results.values()))
    took = time.perf_counter() - began
    print(f"{steps} step{'s' if steps > 1 else ''} in {took:.3f} s: {steps / took:,.1f} steps/s")
    print(
        f"each step: {cost['launches']} launches, {cost['transfers']} transfers, "
        f"{cost['bytes transferred']:,} bytes between slices"
    )
    return loaded.to_buffers(results)


def _tracing(path: str | None) -> contextlib.AbstractContextManager[None]:
    """Records all steps in a file, if that is wanted."""
    if path is None:
        return contextlib.nullcontext()
    from pathways.runtime.local.tracing import trace

    try:
        with Path(path).open("ab"):
            pass
    except OSError as error:
        raise UserError(f"cannot write trace '{path}': {error.strerror}") from None
    return trace(path)


def _parser() -> Parser:
    parser = Parser(
        "pw-run",
        usage="pw-run BUNDLE [--inputs FILE] [--outputs FILE] [--steps N] [--feed OUT:IN ...] [flags]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add("bundle", nargs="?", metavar="BUNDLE", help="a file made by pw-compile -o or Compiled.save")
    add("--inputs", metavar="FILE", help="arrays by the names of arguments (.npz)")
    add("--outputs", metavar="FILE", help="write the results of the last step by their names (.npz)")
    add("--steps", type=count, default=1, metavar="N", help="run so many times; default: 1")
    add(
        "--feed",
        nargs="+",
        action="extend",
        default=[],
        metavar="OUT:IN",
        help="pass results on to the next step",
    )
    add("--trace", metavar="FILE", help="record when each launch and transfer ran, for Perfetto and pw-viz")
    making = parser.add_mutually_exclusive_group()
    making.add_argument("--random", type=count, metavar="SEED", help="make inputs that are missing at random")
    making.add_argument("--zeros", action="store_true", help="make inputs that are missing of zeros")
    add(
        "--trust",
        action="store_true",
        help="load the executables in the bundle, which are native code, and allow any custom call; only for "
        "files that you would also run as a program",
    )
    add(
        "--cpu-devices", type=cpu_devices, metavar="N", help="use so many CPU devices; default: what it needs"
    )
    add("--version", action="store_true", help="print the version")
    add("-h", "--help", action="store_true", help="print this")
    return parser


if __name__ == "__main__":
    sys.exit(main())
