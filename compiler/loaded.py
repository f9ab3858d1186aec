"""Loads programs from bundles, without tracing; see docs/bundle.md."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pathways.compiler.backends.backend import is_served, load_program
from pathways.compiler.backends.executable import CACHE_MISS, ProgramExecutable, Scheduled
from pathways.compiler.backends.served_executable import load_proxied
from pathways.compiler.chunks import ChunkedExecutable, subprogram_ports
from pathways.compiler.frontend import jax_internals
from pathways.compiler.frontend.arguments import Interface, Signature
from pathways.compiler.frontend.trees import keys_of
from pathways.compiler.lower.structures import aval_of, is_key, key_of
from pathways.compiler.stages import Bound
from pathways.runtime.bundle import trees
from pathways.runtime.bundle.file import Bundle
from pathways.runtime.bundle.file import read as read_bundle
from pathways.runtime.bundle.manifest import VERSION_OF_SUB_PROGRAMS, BundleError
from pathways.runtime.bundle.program import StoredProgram, read_program, stored_name
from pathways.runtime.clusters.connect import controller
from pathways.runtime.local.devices import cluster, devices_of, memory_kinds
from pathways.runtime.plan.plan import Launch, Plan
from pathways.runtime.resources.manager import Binding
from pathways.runtime.resources.virtual import VirtualSlice, make_virtual_device_set
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.compile_cache import code_target
from pathways.runtime.xla.rehearse import rehearse_apart
from pathways.runtime.xla.tracebacks import boundary, filter_traceback


@boundary
def load(
    path: str | os.PathLike[str], *, trust: bool = False, slices: Mapping[str, VirtualSlice] | None = None
) -> LoadedProgram:
    """Loads a bundle onto devices of the cluster, without tracing and without the code of the program.

    Args:
      path: the file.
      trust: whether to trust the file as you would a Python module. Only then is native code in it used,
        and custom calls are allowed that JAX does not emit by itself. Without it the file is first examined
        in another process, and its program is compiled.
      slices: your slices for slices of the bundle, by their names there, so that programs can share them. New
        ones are added for the rest.

    Returns:
      The program, to be called like a `Compiled`.

    Raises:
      BundleError: the file is not a bundle, damaged, of another version or platform, or needs `trust`.
      ResourceError: the cluster has too few devices.
      CompileError: XLA rejected a computation.
    """
    return load_bundle(read_bundle(path), trust=trust, slices=slices)


def load_bundle(
    bundle: Bundle, *, trust: bool = False, slices: Mapping[str, VirtualSlice] | None = None
) -> LoadedProgram:
    """Loads a bundle that was read already; see `load`."""
    manifest = bundle.manifest
    platform = cluster().platform
    if manifest.platform != platform:
        raise BundleError(
            f"{bundle.path}: compiled for platform {manifest.platform}, "
            f"but the cluster has {platform} devices"
        )
    _check_memory(bundle)
    # Before this process parses any MLIR of the file, which may crash the parser.
    if not trust:
        # A server compiles it itself.
        rehearse_apart(bundle, 0 if is_served() else len(cluster().devices))
    stored = read_program(bundle)
    if platform == "cpu" and any(call.startswith("lapack_") for call in manifest.custom_calls):
        pjrt.initialize_lapack()
    out_tree = jax.tree.structure(manifest.result.tree)
    interface = Interface(
        slices=_slices(bundle, slices or {}),
        argument_paths=tuple(leaf.name for leaf in manifest.arguments),
        in_avals=tuple(map(aval_of, manifest.arguments)),
        out_avals=tuple(map(aval_of, manifest.results)),
        out_tree=out_tree,
        out_keys=keys_of(out_tree),
        platform=platform,
    )
    args = tuple(root.tree for root in manifest.positional)
    kwargs = {root.name: root.tree for root in manifest.named}
    # Its types are settled: a number that is passed for an array is converted.
    structure = jax.tree.structure((args, kwargs))
    kinds = tuple(leaf.memory_kind for leaf in manifest.arguments)
    signature = Signature(
        structure, keys_of(structure), interface.in_avals, (), None, strict=False, kinds=kinds
    )
    calls = stored.calls
    if is_served():
        compiled = sum(len(_launched(part.plan)) for part in stored.sub_programs.values())
        served = _load_by_server(bundle, stored, interface, signature)
        return LoadedProgram(bundle, served, interface, (0, compiled))
    ports = {"": (interface, signature)} if calls is None else subprogram_ports(calls, interface, None)
    executables: dict[str, ProgramExecutable] = {}
    pairs, reused = 0, 0
    for name, part in stored.sub_programs.items():
        part_interface, types = ports[name]
        program = Scheduled(part.module, part.plan, part_interface, types, stored=part.stored)
        bindings = program.bind()
        is_local = controller() is None
        code = _matching_code(bundle, name, part.plan, bindings) if trust and is_local else {}
        executables[name] = load_program(program, bindings, code)
        pairs += len(_launched(part.plan))
        reused += len(code)
    executable = executables.get("") if calls is None else None
    if calls is not None:
        executable = ChunkedExecutable(calls, executables, interface, signature, manifest.name)
    assert executable is not None
    return LoadedProgram(bundle, executable, interface, (reused, pairs - reused))


def _load_by_server(
    bundle: Bundle, stored: StoredProgram, interface: Interface, signature: Signature
) -> ProgramExecutable:
    """Has the server of this process's devices load a bundle, which uses none of the code in it."""
    plans = {name: part.plan for name, part in stored.sub_programs.items()}
    program = Scheduled(next(iter(stored.sub_programs.values())).module, stored.plan, interface, signature)
    ports = stored.calls.plan_of_ports(bundle.manifest.name, plans) if stored.calls else stored.plan
    return load_proxied(program, program.bind(), ports, plans, bundle.without_code())


def _check_memory(bundle: Bundle) -> None:
    """Checks that devices have the memory of all arguments and results."""
    available = memory_kinds()
    for leaf in (*bundle.manifest.arguments, *bundle.manifest.results):
        if leaf.memory_kind is not None and leaf.memory_kind not in available:
            raise BundleError(
                f"{bundle.path}: '{leaf.name}' is in {leaf.memory_kind} memory, but {cluster().platform} "
                f"devices have only {', '.join(available)} memory"
            )


def _slices(bundle: Bundle, chosen: Mapping[str, VirtualSlice]) -> dict[str, VirtualSlice]:
    """Returns a slice for each of the bundle: the one that the caller chose, or a new one."""
    specs = {spec.name: spec for spec in bundle.manifest.slices}
    for name, virtual in chosen.items():
        spec = specs.get(name)
        if spec is None:
            raise ValueError(f"{bundle.path}: the program has no slice {name}; it has {', '.join(specs)}")
        axes, has = (dict(zip(s.axis_names, s.shape, strict=True)) for s in (spec, virtual))
        if list(axes.items()) != list(has.items()):
            raise ValueError(f"{bundle.path}: slice {name} has axes {axes}, but {virtual.name} has {has}")
    new = make_virtual_device_set()
    return {
        name: chosen.get(name)
        or new.add_slice(s.shape, s.axis_names, name=s.name, island=s.island, overlap=s.overlap)
        for name, s in specs.items()
    }


def _matching_code(
    bundle: Bundle, part: str, plan: Plan, bindings: Mapping[str, Binding]
) -> dict[tuple[str, str], memoryview]:
    """Returns the stored code of each computation of a sub-program on each slice with matching devices."""
    stored = {(code.computation, code.devices, code.target): raw for code, raw in bundle.executables}
    if not stored:
        return {}

    @functools.cache
    def target(name: str, slice: str) -> tuple[int, str]:
        computation = plan.computations[name]
        devices = devices_of(bindings[slice])
        # Each device runs a local computation by itself, with code for one device.
        launched_on = devices[:1] if computation.local else devices
        return len(launched_on), code_target(computation, launched_on)

    keys = {pair: (stored_name(part, pair[0]), *target(*pair)) for pair in _launched(plan)}
    return {pair: stored[key] for pair, key in keys.items() if key in stored}


def _launched(plan: Plan) -> set[tuple[str, str]]:
    """Returns the computations of a plan, each with a slice that it is launched on."""
    return {(step.computation, step.slice) for step in plan.steps if isinstance(step, Launch)}


class LoadedProgram(Bound):
    """Program from a bundle, bound to devices.

    Call it with arguments of the structure that was saved, or of any other whose leaves have the same names:
    a named tuple when it was saved may be a dict now. Results of node types other than dict, list, tuple or
    None are `OrderedDict`s of their fields.
    """

    def __init__(
        self, bundle: Bundle, executable: ProgramExecutable, interface: Interface, origins: tuple[int, int]
    ) -> None:
        super().__init__(executable)
        self.name = bundle.manifest.name
        self._manifest = bundle.manifest
        self._text = bytes(bundle.program).decode()
        self._interface = interface
        self._origins = origins
        self._orders: dict[Any, list[int]] = {}

    def __repr__(self) -> str:
        return f"<program {self.name} from a bundle>"

    @property
    def inputs(self) -> dict[str, Any]:
        """The abstract value of each argument, by name."""
        return dict(zip(self._interface.argument_paths, self._interface.in_avals, strict=True))

    @property
    def outputs(self) -> dict[str, Any]:
        """The abstract value of each result, by name."""
        names = [leaf.name for leaf in self._manifest.results]
        return dict(zip(names, self._interface.out_avals, strict=True))

    @property
    def donated(self) -> frozenset[str]:
        """The names of the arguments that a call consumes."""
        return frozenset(leaf.name for leaf in self._manifest.arguments if leaf.donated)

    @property
    def in_parts(self) -> bool:
        """Whether it has loops that end depending on values; then its plan is the plan of a chunk."""
        return self._manifest.version == VERSION_OF_SUB_PROGRAMS

    @property
    def origins(self) -> tuple[int, int]:
        """Number of executables that came from the bundle, and number that were compiled."""
        return self._origins

    def as_text(self, phase: str = "scheduled") -> str:
        """Returns the program as MLIR text.

        Args:
          phase: `scheduled`, or `device` for XLA's optimized module of each computation on each slice.
        """
        if phase not in ("scheduled", "device"):
            raise ValueError(f"a bundle only has the phases scheduled and device, not '{phase}'")
        return self.executable.device_text() if phase == "device" else self._text

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program and returns at once, with arrays that become ready later.

        Raises:
          TypeError: an argument has not the shape, dtype or names that were saved.
        """
        # As `boundary`, without the time of a wrapper.
        try:
            leaves, tree = jax_internals.flatten((args, kwargs))
            if tree != self.executable.tree:
                if tree not in self._orders:
                    self._orders[tree] = self._order(args, kwargs)
                leaves = [leaves[n] for n in self._orders[tree]]
            return self._execute(leaves)
        except Exception as error:
            filter_traceback(error)
            raise

    @boundary
    def by_name(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the program on arrays by the names of arguments; returns the results by theirs.

        Raises:
          TypeError: an array is missing, unknown, or of another shape or dtype.
        """
        order = self._numbers(list(arrays))
        leaves = list(arrays.values())
        results = jax.tree.leaves(self._execute([leaves[n] for n in order]))
        return dict(zip(self.outputs, results, strict=True))

    def from_buffers(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Returns arguments by name from plain arrays, in which typed PRNG keys are given as their bits."""
        avals = self.inputs
        return {
            name: jax.random.wrap_key_data(
                jax.numpy.asarray(array), impl=jax_internals.key_kind(avals[name].dtype)
            )
            if is_key(avals[name])
            else array
            for name, array in arrays.items()
        }

    def to_buffers(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns plain arrays from results by name."""
        return {
            name: np.asarray(jax.random.key_data(array) if is_key(array) else array)
            for name, array in arrays.items()
        }

    def place_by_name(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Puts arrays on the slices of the arguments that they are for, so that calls need not move them."""
        paths = self._interface.argument_paths
        numbers = {name: n for n, name in enumerate(paths) if name in arrays}
        placed = self.executable.put_arguments({n: arrays[name] for name, n in numbers.items()}, copy=True)
        return {**arrays, **{paths[n]: array for n, array in placed.items()}}

    def _execute(self, leaves: list[Any]) -> Any:
        result = self.executable.try_fast_path(leaves)
        if result is not CACHE_MISS:
            return result
        return self.executable.execute(self.executable.transfer_or_raise(leaves, self.executable.tree))

    def _order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        """Returns the position of each argument's leaves in trees that differ from the saved ones in node
        types."""
        roots = [root.name for root in self._manifest.positional]
        if len(args) != len(roots):
            raise TypeError(
                f"program '{self.name}' takes {len(roots)} positional arguments ({', '.join(roots)}), "
                f"got {len(args)}"
            )
        named = [*zip(roots, args, strict=True), *sorted(kwargs.items())]
        names = [
            root + "".join(trees.step(key_of(step)) for step in path)
            for root, argument in named
            for path, _ in jax.tree_util.tree_leaves_with_path(argument)
        ]
        return self._numbers(names)

    def _numbers(self, names: Sequence[str]) -> list[int]:
        """Returns the position of each argument in a list of names."""
        paths = self._interface.argument_paths
        positions = {name: n for n, name in enumerate(names)}
        missing = [name for name in paths if name not in positions]
        expected = set(paths)
        unknown = [name for name in names if name not in expected]
        for problem, wrong in (("needs", missing), ("does not take", unknown)):
            if wrong:
                more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
                raise TypeError(f"program '{self.name}' {problem} an argument {', '.join(wrong[:3])}{more}")
        return [positions[name] for name in paths]
