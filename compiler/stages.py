"""The stages of a program after tracing, with the names of JAX's own: `Lowered` and `Compiled`."""

from __future__ import annotations

import collections
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxlib.mlir import ir

from pathways.compiler import jax_internals
from pathways.compiler.arguments import Signature
from pathways.compiler.call import UNLIKE, Call
from pathways.compiler.lowering import Traced
from pathways.dialect import form_of
from pathways.passes.base import PassFailure
from pathways.passes.driver import Diagnostic, Diagnostics, run_passes
from pathways.passes.pipeline import Options, phases_behind
from pathways.runtime.local.devices import bind
from pathways.runtime.local.load import Executable, load
from pathways.runtime.local.memory import MemoryAnalysis, analyze
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Launch, Plan, Transfer
from pathways.runtime.resources.virtual import VirtualSlice
from pathways.runtime.simulate.links import read_link
from pathways.runtime.simulate.replay import simulate
from pathways.runtime.simulate.times import read_times
from pathways.runtime.timelines.timeline import Timeline

PHASES = ("stablehlo", "imported", "placed", "sharded", "scheduled")
"""The forms of a program that `as_text` shows, in the order in which it takes them."""


class ProgramError(ValueError):
    """A program that cannot be lowered; the message names the place in the user's code."""


class Lowered:
    """A program in all forms of the IR, ready to be compiled.

    Made by `Program.lower`. `remarks` holds what the passes found worth saying.
    """

    def __init__(
        self, name: str, traced: Traced, signature: Signature, options: Options, start: str = PHASES[0]
    ) -> None:
        self.name = name
        self._traced = traced
        self._signature = signature
        self._forms: dict[str, bytes] = {}
        self.remarks: tuple[Diagnostic, ...] = ()
        self._module = traced.module
        self._run(options, start)

    @property
    def in_avals(self) -> tuple[Any, ...]:
        """Abstract values of the flat arguments."""
        return self._traced.in_avals

    @property
    def slices(self) -> Mapping[str, VirtualSlice]:
        """The virtual slices that the program needs, by name."""
        return self._traced.slices

    @property
    def out_tree(self) -> Any:
        """The structure of the results."""
        return self._traced.out_tree

    def as_text(self, phase: str = "scheduled") -> str:
        """The module after a phase, as MLIR text.

        Args:
          phase: one of `stablehlo`, `imported`, `placed`, `sharded`, `scheduled`.
        """
        if phase not in PHASES:
            raise ValueError(f"unknown phase '{phase}'; the phases are {', '.join(PHASES)}")
        if phase not in self._forms:
            raise ValueError(f"program '{self.name}' starts in a form behind '{phase}'")
        return str(ir.Module.parse(self._forms[phase], self._module.context))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a bundle: a file that `pathways.load` and `pw-run` run without the code of the program.

        Args:
          path: the file, by custom `*.pwb`.

        Raises:
          BundleError: the program calls back into Python, or its arguments have no names in a file.
          OSError: the file cannot be written.
        """
        from pathways.compiler.bundles import save

        save(path, self)

    def compile(self) -> Compiled:
        """Binds the slices to devices, compiles every computation, and generates the launch path.

        Raises:
          ResourceError: when there are too few devices; says how many there are and who holds them. When
            they have too little memory; says what each slice takes.
          CompileError: when XLA refuses a computation; names it.
        """
        plan = plan_of(self._module, self.name, proved=True)
        bindings = bind(self._traced.slices.values(), program=self.name)
        executable = load(
            plan,
            {name: bindings[virtual] for name, virtual in self._traced.slices.items()},
            result_avals=self._traced.out_avals,
            callbacks=self._traced.callbacks,
            argument_names=self._traced.argument_paths,
        )
        return Compiled(self, plan, executable, Call(plan, executable, self._traced, self._signature))

    def _run(self, options: Options, start: str) -> None:
        directory = os.environ.get("PW_DUMP_TO")
        if start in PHASES:
            self._keep(start, directory)
        with Diagnostics(self._module.context) as seen:
            for phase in phases_behind(options, form_of(self._module)):
                try:
                    # From the placed form on, each phase ends with a pass that closes its form.
                    run_passes(self._module, phase.passes, verify_each=False)
                except PassFailure:
                    error = seen.errors[0]
                    where = f" ({error.position})" if error.position else ""
                    message = error.message.removeprefix("'func.func' op ")
                    raise ProgramError(f"program '{self.name}': {message}{where}") from None
                self._keep(phase.name, directory)
        self.remarks = tuple(d for d in seen.all if d.severity == "remark")

    def _keep(self, phase: str, directory: str | None) -> None:
        """Remembers the module after a phase; printing waits until somebody asks."""
        buffer = io.BytesIO()
        self._module.operation.write_bytecode(buffer)
        self._forms[phase] = buffer.getvalue()
        if directory:
            folder = Path(directory)
            folder.mkdir(parents=True, exist_ok=True)
            number = PHASES.index(phase)
            (folder / f"{self.name}.{number}_{phase}.mlir").write_text(self.as_text(phase) + "\n")


class Bound:
    """A program bound to devices: what `Compiled` and `LoadedProgram` have in common."""

    def __init__(self, plan: Plan, executable: Executable, call: Call) -> None:
        self._plan = plan
        self._executable = executable
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program and returns at once, with arrays that become ready later.

        Raises:
          TypeError: when an argument does not have the shape, dtype or structure it was compiled for.
        """
        leaves, tree = jax_internals.flatten((args, kwargs))
        call = self._call
        if tree == call.tree:
            result = call.go_if_like_last(leaves)
            if result is not UNLIKE:
                return result
        return call.go(call.bring_or_fail(leaves, tree))

    def _device_text(self) -> str:
        return "\n".join(
            f"// computation {computation} on slice {slice}\n\n{module.to_string().strip()}\n"
            for (computation, slice), executable in self._executable.executables.items()
            for module in executable.hlo_modules()
        )

    @property
    def plan(self) -> Plan:
        """The scheduled program, flattened."""
        return self._plan

    def cost_analysis(self) -> dict[str, Any]:
        """Counts what one call does.

        Returns:
          `launches` and `transfers` between slices, `bytes transferred` by them, and the `flops` of all
          computations by XLA's estimate, on all devices together.
        """
        launches = [s for s in self._plan.steps if isinstance(s, Launch)]
        counts = collections.Counter((s.computation, s.slice) for s in launches)
        transfers = [s for s in self._plan.steps if isinstance(s, Transfer)]
        return {
            "launches": len(launches),
            "transfers": len(transfers),
            "bytes transferred": sum(self._plan.bytes_moved(t) for t in transfers),
            "flops": sum(self.flops(*pair) * n for pair, n in counts.items()),
        }

    def flops(self, computation: str, slice: str) -> float:
        """The floating-point operations of one launch on a slice, by XLA's estimate, on all its devices."""
        return float(self._executable.executables[computation, slice].cost_analysis().get("flops", 0.0))

    def memory_analysis(self) -> MemoryAnalysis:
        """The memory that one call takes on each slice, in bytes over all devices of the slice together.

        Returns:
          By the name of the slice, a `SliceMemory`: arguments, results, temporaries, and the peak of all that
          is alive at once, under the names of `jax.stages.Compiled.memory_analysis()`. `print` shows a table.
        """
        return analyze(self._plan, self._executable.executables)

    def timeline(
        self,
        times: Mapping[str, Any] | None = None,
        *,
        latency: str | float | None = None,
        bandwidth: str | float | None = None,
    ) -> Timeline:
        """When everything in a call would run, by a replay of the plan; nothing is executed.

        Args:
          times: how long launches take, as `{"phases": {"fwd": "1ms", "bwd": "2ms"}}`; see
            `runtime.simulate.times` for all of the form. By default one unit of time for each placed call.
          latency: of links between slices, such as `5us`; none by default.
          bandwidth: of links between slices, such as `10GB/s`; no limit by default.

        Returns:
          The timeline: `step_time`, `bubble(slice)`, `peak_bytes(slice)`, `critical_path`, `events`; with
          `save_html(path)` and `save_trace(path)`.

        Raises:
          TimesError: names the entry that is wrong.
        """
        durations = read_times(times or {}, self._plan)
        return simulate(self._plan, durations, read_link(latency, bandwidth, durations.unit))


class Compiled(Bound):
    """A program bound to devices: call it with arguments of the signature it was lowered for."""

    def __init__(self, lowered: Lowered, plan: Plan, executable: Executable, call: Call) -> None:
        super().__init__(plan, executable, call)
        self._lowered = lowered

    def as_text(self, phase: str = "scheduled") -> str:
        """The module after a phase; see `Lowered.as_text`.

        Args:
          phase: one of those, or `device` for XLA's optimized module of each computation on each slice.
        """
        return self._device_text() if phase == "device" else self._lowered.as_text(phase)

    def save(self, path: str | os.PathLike[str], *, executables: bool = False) -> None:
        """Writes a bundle, as `Lowered.save` does.

        Args:
          path: the file, by custom `*.pwb`.
          executables: also store the code that XLA made, for processes on such machines that trust it.

        Raises:
          BundleError: see `Lowered.save`.
          CompileError: the platform cannot serialise its executables.
        """
        from pathways.compiler.bundles import save

        save(path, self._lowered, self._executable if executables else None)
