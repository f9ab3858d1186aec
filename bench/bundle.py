"""Time from a file to the first result, against trace, compile and first result: the train step of `make
demo`.

  python bench/bundle.py [--json PATH] [--rounds N] [--mesh 2x1]

Each side runs in processes of its own, in turn, and imports are not counted. The target is for a bundle that
is loaded with trust, so that its executables are used. The code store is off on all sides.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TARGET, LARGEST = 5.0, 1.3
ROOT = Path(__file__).parents[1]


class Clock:
    """Seconds of the phases of one run, in order."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}

    def measure[T](self, part: str, run: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = run()
        self.parts[part] = time.perf_counter() - began
        return result


def first_result(step: Any) -> None:
    import jax

    jax.block_until_ready(step(*_arguments()))


def _arguments() -> tuple[Any, Any]:
    """Returns a state and a batch, as numpy arrays that were created before anything is timed."""
    return _prepared["state"], _prepared["batch"]


_prepared: dict[str, Any] = {}


def prepare(mesh: tuple[int, int]) -> None:
    """Imports everything, starts JAX's devices, and creates the arguments."""
    sys.path.insert(0, str(ROOT / "examples"))
    import char_lm
    import jax
    import numpy as np

    import pathways as pw
    import pathways.compiler.api
    import pathways.compiler.loaded

    pw.connect(cpu_devices=char_lm.STAGES * mesh[0] * mesh[1])
    optimizer = char_lm.make_optimizer(500)
    params = char_lm.init_params(np.random.default_rng(0), 64)
    _prepared["state"] = jax.device_get((params, optimizer.init(params)))
    rng = np.random.default_rng(0)
    _prepared["batch"] = tuple(rng.integers(128, size=(16, 64), dtype=np.int32) for _ in range(2))
    # JAX's own work at the first computation of a process.
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jax.device_put(np.zeros(2, np.float32))))


def program(mesh: tuple[int, int]) -> Any:
    """Returns the train step of the demo."""
    import char_lm

    import pathways as pw

    devices = pw.make_virtual_device_set()
    slices = [devices.add_slice(shape=mesh, axis_names=char_lm.AXES) for _ in range(char_lm.STAGES)]
    params, _ = _prepared["state"]
    stages = char_lm.place(slices, params)
    optimizer = char_lm.make_optimizer(500)

    @pw.program(schedule="1f1b", donate_argnums=0)
    def train_step(state: Any, batch: Any) -> Any:
        return char_lm.update(stages, optimizer, 8, state, batch)

    return train_step


def from_source(mesh: tuple[int, int], save_to: Path | None) -> dict[str, Any]:
    """Traces, compiles and runs."""
    clock = Clock()
    step = program(mesh)
    lowered = clock.measure("trace and passes", lambda: step.lower(*_arguments()))
    compiled = clock.measure("compile", lowered.compile)
    clock.measure("first result", lambda: first_result(compiled))
    if save_to is not None:
        compiled.save(save_to, executables=True)
    return {"parts": clock.parts, **digests(compiled)}


def from_file(path: Path, trust: bool) -> dict[str, Any]:
    """Loads and runs; the parts are those of `pathways.load`, which is timed as a whole too."""
    from pathways.compiler import loaded
    from pathways.runtime.bundle import file as bundle

    clock = Clock()
    read = clock.measure("read", lambda: bundle.read(path))
    for part, name in (
        ("rehearse", "rehearse_apart"),
        ("parse and plan", "read_program"),
        ("executables" if trust else "compile", "load_executable"),
    ):
        inner = getattr(loaded, name)
        setattr(loaded, name, lambda *a, _p=part, _f=inner, **k: clock.measure(_p, lambda: _f(*a, **k)))
    began = time.perf_counter()
    step = loaded.load_bundle(read, trust=trust)
    whole = time.perf_counter() - began
    clock.parts["bind and rest"] = whole - sum(clock.parts.values()) + clock.parts["read"]
    clock.measure("first result", lambda: first_result(step))
    return {"parts": clock.parts, **digests(step)}


def digests(bound: Any) -> dict[str, str]:
    """Returns digests of the plan and of the optimized modules of a program."""
    import dataclasses

    plan = bound.plan
    computations = {name: dataclasses.replace(c, module=b"") for name, c in plan.computations.items()}
    plain = repr(dataclasses.replace(plan, computations=computations))
    return {
        "plan": hashlib.sha256(plain.encode()).hexdigest()[:16],
        "executables": hashlib.sha256(bound.as_text("device").encode()).hexdigest()[:16],
    }


def child(mode: str, mesh: tuple[int, int], path: Path) -> dict[str, Any]:
    """Runs once in a process of its own."""
    command = [sys.executable, __file__, "--mode", mode, "--mesh", f"{mesh[0]}x{mesh[1]}"]
    command += ["--bundle", str(path)]
    environment = {**os.environ, "PW_CACHE_DIR": "", "TF_CPP_MIN_LOG_LEVEL": "2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the run of median length."""
    return sorted(runs, key=seconds)[len(runs) // 2]


def seconds(run: dict[str, Any]) -> float:
    return sum(run["parts"].values())


def main() -> None:
    """Prints the table, and writes it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side; the median counts")
    parser.add_argument("--mesh", default="2x1", help="devices of each slice (default: %(default)s)")
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    parser.add_argument("--bundle", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    data, model = map(int, options.mesh.split("x"))
    mesh = data, model
    if options.mode:
        prepare(mesh)
        if options.mode in ("source", "save"):
            result = from_source(mesh, options.bundle if options.mode == "save" else None)
        else:
            result = from_file(options.bundle, trust=options.mode == "trust")
        print(json.dumps(result))
        return
    with tempfile.TemporaryDirectory() as folder:
        report(options, mesh, Path(folder) / "step.pwb")


def report(options: argparse.Namespace, mesh: tuple[int, int], path: Path) -> None:
    """Measures both sides in turn, and prints the results."""
    import jax

    saved = child("save", mesh, path)
    runs: dict[str, list[dict[str, Any]]] = {"source": [], "trust": [], "no trust": []}
    for _ in range(options.rounds):
        for mode, found in runs.items():
            found.append(child(mode, mesh, path))
    print(f"command: python bench/bundle.py --mesh {options.mesh}")
    print(f"python {platform.python_version()}, jax {jax.__version__}, jaxlib {jax.lib.__version__}")
    for mode, found in runs.items():
        parts = {part: statistics.median(run["parts"][part] for run in found) for part in found[0]["parts"]}
        shown = ", ".join(f"{part} {1e3 * value:.0f}" for part, value in parts.items())
        print(f"{mode:<9} {1e3 * seconds(middle(found)):>7.0f} ms: {shown}")
    ratios = {
        mode: statistics.median(
            seconds(theirs) / seconds(ours) for theirs, ours in zip(runs["source"], runs[mode], strict=True)
        )
        for mode in ("trust", "no trust")
    }
    over = "" if ratios["trust"] >= TARGET else "  under"
    print(f"with trust {ratios['trust']:.1f} times faster, target {TARGET:.0f}{over}")
    print(f"without trust {ratios['no trust']:.1f} times faster")
    for what in ("plan", "executables"):
        same = all(run[what] == saved[what] for run in runs["trust"])
        print(f"{what}: {'the same' if same else 'DIFFERENT'} ({saved[what]})")
    from pathways.runtime.bundle.file import read

    code = sum(len(raw) for _, raw in read(path).executables)
    ratio = path.stat().st_size / code
    over = "" if ratio <= LARGEST else "  over"
    print(f"size {path.stat().st_size:,} bytes, {ratio:.2f} times its executables, target {LARGEST}{over}")
    if options.json:
        document = {"runs": runs, "ratios": ratios, "size": path.stat().st_size, "executables": code}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
