"""Clients of other releases of JAX on one server of the installed release.

    python test/proxy_versions.py build/proxy-versions/*/bin/python

For each of these Pythons, the programs of `support/proxy_programs.py`, and some more, run on local devices
and as clients of one server. What they return has to be equal, up to rounding: another release of XLA
compiles the same program. An error that local devices raise, too, is no difference.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DEVICES = "8"
TIMEOUT_S = 600
SUPPORT = Path(__file__).resolve().parent / "support"


# In a process of the other release.


def run_programs(results: Path) -> None:
    """Runs all programs and writes what they return."""
    import jax

    if "proxy" in os.environ["JAX_PLATFORMS"] and jax.__version_info__ < (0, 12):
        import pathwaysutils

        pathwaysutils.initialize()
    sys.path.insert(0, str(SUPPORT))
    import proxy_programs

    proxy_programs.PROGRAMS["errors_are_raised_when_they_are_read"] = errors
    proxy_programs.PROGRAMS["pathwaysutils_reshards"] = reshard
    results.write_bytes(pickle.dumps((jax.__version__, proxy_programs.run_all(proxy_programs.PROGRAMS))))


def errors() -> Any:
    """Returns the status of an execution that needs too much memory, and a result after it."""
    import jax
    import jax.numpy as jnp

    failed = jax.jit(lambda x: jnp.zeros((1 << 21, 1 << 21)).at[0].set(x))(1.0)
    try:
        failed.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        return str(error).partition(":")[0], jnp.ones(2) + 1
    return None


def reshard() -> Any:
    """Returns an array that `pathwaysutils` moves to half of the devices."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = np.array(jax.devices())
    half = NamedSharding(Mesh(devices[:4], ("x",)), PartitionSpec(None, "x"))
    x = jax.device_put(
        np.arange(32.0, dtype=np.float32).reshape(8, 4),
        NamedSharding(Mesh(devices, ("x",)), PartitionSpec("x")),
    )
    if jax.devices()[0].client.runtime_type == "proxy/pathways":
        from pathwaysutils.experimental import reshard as pathways_reshard

        moved = pathways_reshard.reshard(x, half)
    else:
        moved = jax.device_put(x, half)
    return moved, [shard.data.shape for shard in moved.addressable_shards]


# In a process of the project's release.


def unlisted_calls(python: str) -> set[str]:
    """Returns the custom calls of a Python's JAX that are in no list of ours."""
    from pathways.runtime.bundle.custom_calls import CLIENT_CALLS, REFUSED_CALLS

    listed = CLIENT_CALLS | REFUSED_CALLS.keys()
    command = [python, SUPPORT / "custom_calls_of_jax.py"]
    done = subprocess.run(
        command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, timeout=TIMEOUT_S, check=True
    )
    _, names = json.loads(done.stdout)
    return {name for name in names if not {name, name.replace("cu", "hip", 1)} & listed}


def results_of(python: str, environment: Mapping[str, str], folder: Path) -> tuple[str, dict[str, Any]]:
    """Returns the release of a Python's JAX, and what each program returned or raised."""
    results = folder / "results"
    command = [python, __file__, "--client", str(results)]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"{python} ended with code {done.returncode}:\n{done.stderr[-3000:]}")
    loaded: tuple[str, dict[str, Any]] = pickle.loads(results.read_bytes())
    return loaded


def difference(one: Any, other: Any) -> str:
    """Returns how two results differ; empty if they do not, up to rounding."""
    if isinstance(one, (list, tuple)) and isinstance(other, type(one)) and len(one) == len(other):
        found = (difference(*pair) for pair in zip(one, other, strict=True))
        return next((text for text in found if text), "")
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        return difference(list(one.values()), list(other.values()))
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return "" if one == other else f"{one!r} and {other!r}"[:300]
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{one.dtype}{one.shape} and {other.dtype}{other.shape}"
    if one.tobytes() == other.tobytes():
        return ""
    if one.dtype.kind in "biu" or one.dtype.itemsize < 4:
        return f"{one.dtype}{one.shape} has other bytes"
    error = float(np.max(np.abs(one - other)))
    return (
        ""
        if np.allclose(one, other, rtol=1e-4, atol=1e-5)
        else f"{one.dtype}{one.shape} is off by {error:.2g}"
    )


def compare(local: Mapping[str, Any], proxied: Mapping[str, Any]) -> list[str]:
    """Returns a line for each program that differs."""
    lines = []
    for name, want in local.items():
        got = proxied[name]
        if isinstance(got, Exception):
            text = "" if isinstance(want, Exception) else str(got)
        else:
            text = "" if isinstance(want, Exception) else difference(got, want)
        if text:
            lines.append(f"{name}: {text}")
    return lines


def main(pythons: Sequence[str]) -> int:
    """Runs the programs with each Python; returns an exit code."""
    failed = False
    with tempfile.TemporaryDirectory(prefix="proxy-versions-") as name:
        folder = Path(name)
        address = f"unix:{folder}/jax"
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pathways.tools.pw_proxy",
                f"--listen={address}",
                f"--cpu-devices={DEVICES}",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            exports = [server.stdout.readline().removeprefix("export ").strip() for _ in range(3)]
            of_server = dict(line.split("=", 1) for line in exports)
            for python in pythons:
                on_cpu = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": DEVICES}
                version, local = results_of(python, on_cpu, folder)
                _, proxied = results_of(python, of_server, folder)
                lines = compare(local, proxied)
                print(
                    f"jax {version}: {len(local) - len(lines)} of {len(local)} programs equal local devices"
                )
                for line in lines:
                    print(f"  {line}")
                unlisted = unlisted_calls(python)
                if unlisted:
                    print(f"  custom calls in no list of runtime/bundle/custom_calls.py: {sorted(unlisted)}")
                failed = failed or bool(lines) or bool(unlisted)
        finally:
            server.terminate()
            server.wait(60)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        run_programs(Path(sys.argv[2]))
        sys.exit()
    sys.exit(main(sys.argv[1:]))
