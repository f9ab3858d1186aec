"""Bundles that are the seeds of mutations, disassembled into members, and their assembly."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from forked import run_all
from jax.sharding import PartitionSpec as P

import pathways as pw
from pathways.runtime.bundle import stored_zip
from pathways.runtime.bundle.manifest import MANIFEST

DEVICES = 6
"""Number of CPU devices for all seeds."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """Members of a bundle.

    Attributes:
      manifest: its manifest as JSON.
      members: all other members by name.
    """

    manifest: dict[str, Any]
    members: Mapping[str, bytes]

    @staticmethod
    def read(path: Path) -> Parts:
        """Returns the members of a file."""
        members = stored_zip.unpack(memoryview(path.read_bytes()), lambda name, size: None)
        contents = {name: bytes(data) for name, data in members.items()}
        return Parts(json.loads(contents.pop(MANIFEST)), contents)

    def write(self, path: Path) -> None:
        """Writes a file with right digests, if the manifest is valid."""
        manifest = dict(self.manifest)
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in self.members.items()}
        if manifest.get("digests") == "right":
            manifest["digests"] = digests
        text = json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n"
        path.write_bytes(b"".join(stored_zip.pack({MANIFEST: text, **self.members})))


def write_seeds(folder: Path, note: Callable[[str], None] = print) -> None:
    """Writes one bundle for each kind of program."""
    pw.connect(cpu_devices=DEVICES)
    for make in (_tiny, _stages, _cut, _pipeline, _parts):
        note(f"making {make.__name__}")
        program, arguments = make()
        program.lower(*arguments).save(folder / f"{make.__name__.strip('_')}.pwb")


def read_seeds(folder: Path) -> tuple[Parts, ...]:
    """Returns the bundles of a folder, to be written with right digests."""
    parts = [Parts.read(path) for path in sorted(folder.glob("*.pwb"))]
    return tuple(dataclasses.replace(p, manifest={**p.manifest, "digests": "right"}) for p in parts)


def seeds_of_child(seconds: float, memory: int) -> tuple[Parts, ...]:
    """Returns the bundles, made in a child: a process that has started JAX must not fork.

    Args:
      seconds: how long it may take.
      memory: the limit of its address space, in bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        ((_, ending),) = run_all([(0, lambda _, note: write_seeds(Path(folder), note))], 1, seconds, memory)
        seeds = read_seeds(Path(folder))
    if not seeds:
        raise RuntimeError(f"no seeds: {ending.stderr}")
    return seeds


def _slices(*shapes: tuple[int, ...]) -> list[pw.VirtualSlice]:
    devices = pw.make_virtual_device_set()
    return [devices.add_slice(shape, ("x", "y")[: len(shape)]) for shape in shapes]


def _tiny() -> tuple[Any, tuple[Any, ...]]:
    (s0,) = _slices((1,))
    return pw.program(pw.jit(lambda x: jnp.tanh(x) + 1, devices=s0)), (np.zeros(2, np.float32),)


def _stages() -> tuple[Any, tuple[Any, ...]]:
    """Returns a program with trees, donation, keys, a constant, LAPACK, a loop, and a comparator."""
    s0, s1 = _slices((1,), (1,))
    table = np.linspace(-1, 1, 512, dtype=np.float32).reshape(8, 64)
    front = pw.jit(lambda w, x: jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w), x), devices=s0)
    back = pw.jit(lambda h: jnp.linalg.cholesky(h @ h.T + 100 * jnp.eye(len(h))), devices=s1)

    def step(state, x, key):
        h = front(state["w"], x)
        noise = jax.random.normal(key, h.shape)
        top = jax.lax.approx_max_k(h, 2)[0]
        return {"w": state["w"] - 0.1, "n": state["n"] + 1}, (back(h + noise), h @ table, [top, None])

    state = {"w": np.eye(8, dtype=np.float32), "n": np.int32(0)}
    return pw.program(step, donate_argnums=0), (state, np.ones((4, 8), np.float32), jax.random.key(0))


def _cut() -> tuple[Any, tuple[Any, ...]]:
    """Returns a program on different meshes, so that values are cut, transferred in pieces and joined."""
    s0, s1 = _slices((2,), (2, 2))
    double = pw.jit(lambda x: x * 2, devices=s0, in_shardings=P("x"), out_shardings=P("x"))
    add = pw.jit(lambda x: x @ x + 1, devices=s1, in_shardings=P(None, ("x", "y")))
    program = pw.program(lambda x: add(double(x)))
    return program, (np.ones((8, 8), np.float32),)


def _pipeline() -> tuple[Any, tuple[Any, ...]]:
    s0, s1 = _slices((1,), (1,))
    front = pw.jit(lambda w, x: jnp.tanh(x @ w), devices=s0)
    back = pw.jit(lambda w, x: x @ w, devices=s1)

    def step(weights, batch):
        def loss(weights, batch):
            return (back(weights[1], front(weights[0], batch)) ** 2).mean()

        value, gradients = pw.accumulate(jax.value_and_grad(loss), 2)(weights, batch)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    weights = [np.eye(4, dtype=np.float32)] * 2
    return pw.program(step, schedule="1f1b", donate_argnums=0), (weights, np.ones((4, 4), np.float32))


def _parts() -> tuple[Any, tuple[Any, ...]]:
    """Returns a program of two loops whose end depends on values, with a key and a constant."""
    s0, s1 = _slices((1,), (1,))
    front = pw.jit(lambda w, x: jnp.tanh(x @ w), devices=s0)
    back = pw.jit(lambda x: x * 0.5, devices=s1)
    table = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)

    def step(w, x, end, key):
        body = lambda s: (s[0] + 1, back(front(w, s[1])))  # noqa: E731
        n, x = jax.lax.while_loop(lambda s: s[0] < end, body, (0, x))
        n, x = jax.lax.while_loop(lambda s: jnp.abs(s[1]).sum() > 0.1, body, (n, x + table))
        return n, x + jax.random.normal(key, x.shape), w

    arguments = table, np.ones((4, 4), np.float32), np.int32(3), jax.random.key(0)
    return pw.program(step, chunk=2, donate_argnums=1), arguments
