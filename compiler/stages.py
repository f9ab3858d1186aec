"""The stages of a program after tracing, with the names of JAX's own: `Lowered` and `Compiled`."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, override

import jax
from jaxlib.mlir import ir

from pathways.compiler.backends.backend import is_served, load_program
from pathways.compiler.backends.executable import CACHE_MISS, ProgramExecutable, Scheduled
from pathways.compiler.backends.replica_executable import ReplicaExecutable
from pathways.compiler.backends.replicated import with_replicas
from pathways.compiler.backends.served_executable import load_proxied
from pathways.compiler.chunks import ChunkedExecutable, subprogram_ports
from pathways.compiler.frontend import jax_internals
from pathways.compiler.frontend.arguments import Interface, Signature
from pathways.compiler.lower.bundles import save
from pathways.compiler.lower.phases import PHASES, Forms, run_phases
from pathways.dialect import form_of, make_context, ops_named
from pathways.dialect.operations.operation import parts_of, symbol_name
from pathways.dialect.syntax.bytecode import copy_of
from pathways.dialect.syntax.pretty import pretty as for_people
from pathways.dialect.verification.forms import PARTS
from pathways.passes.analysis.links import read_link
from pathways.passes.pipeline import Options
from pathways.runtime.local.memory import MemoryAnalysis
from pathways.runtime.plan.lower import plan_of
from pathways.runtime.plan.plan import Launch, Plan, Transfer
from pathways.runtime.plan.sub_programs import calls_of
from pathways.runtime.resources.tables import html_table
from pathways.runtime.resources.virtual import ProcessBound, VirtualSlice
from pathways.runtime.simulate.replay import simulate
from pathways.runtime.simulate.times import ReplayTimes, read_times, stated_times, times_in, title_of
from pathways.runtime.traces.timeline import Timeline
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.compile_cache import Request
from pathways.runtime.xla.tracebacks import boundary, filter_traceback

_SHOWN_LINES = 1000
"""Limit of the lines of a module that a notebook shows."""


class Lowered(ProcessBound):
    """Program in all forms of the IR, ready to be compiled; created by `Program.lower`.

    `remarks` holds the remarks of the passes, `schedule` the policy or schedule file of all loops; None if
    each has its own, or none.
    """

    def __init__(
        self,
        forms: Forms,
        interface: Interface,
        signature: Signature,
        callbacks: Sequence[Any] = (),
        keepalive: Sequence[Any] = (),
        schedule: str | None = None,
        options: Options | None = None,
        running: tuple[int, ...] | None = None,
    ) -> None:
        self.name = forms.name
        self.schedule = schedule
        self.remarks = forms.remarks
        self._forms = forms
        names = [
            (op.sym_name, op.replica_of, op.replica or 0) for op in ops_named(forms.scheduled, ["pw.slice"])
        ]
        self._written = interface
        self._interface = dataclasses.replace(
            interface, slices=with_replicas(interface.slices, names, running)
        )
        self._signature = signature
        self._callbacks = callbacks
        self._keepalive = keepalive
        self._options = options

    def __repr__(self) -> str:
        return f"<lowered program {self.name}>"

    def _repr_html_(self) -> str:
        """Returns its slices and remarks, and its last form, as HTML for a notebook."""
        lines = self.as_text().splitlines()
        more = len(lines) - _SHOWN_LINES
        text = "\n".join([*lines[:_SHOWN_LINES], *([f"... {more} more lines"] if more > 0 else [])])
        remarks = "".join(f"<p>{escape(str(remark))}</p>" for remark in self.remarks)
        return (
            f"<p>lowered program <b>{escape(self.name)}</b>, slices {escape(', '.join(self.slices))}</p>"
            f"{remarks}<details><summary>scheduled form; <code>as_text(phase)</code> has all forms</summary>"
            f'<pre style="max-height:30em;overflow:auto">{escape(text)}</pre></details>'
        )

    @property
    def in_avals(self) -> tuple[Any, ...]:
        """Abstract values of the flat arguments."""
        return self._interface.in_avals

    @property
    def args_info(self) -> Any:
        """`(args, kwargs)` with a `jax.stages.ArgInfo` for each: its type, and whether it is consumed."""
        arguments = plan_of(self._forms.scheduled, self.name, proved=True).arguments
        donated = [argument.donated for argument in arguments if argument.constant is None]
        return self._signature.tree.unflatten(map(jax.stages.ArgInfo, self.in_avals, donated))

    @property
    def slices(self) -> Mapping[str, VirtualSlice]:
        """The virtual slices that the program needs, by name."""
        return self._interface.slices

    @property
    def out_tree(self) -> Any:
        """The structure of the results."""
        return self._interface.out_tree

    def as_text(self, phase: str = "scheduled", *, pretty: bool = False) -> str:
        """Returns the module after a phase, as MLIR text.

        Args:
          phase: one of `stablehlo`, `imported`, `placed`, `sharded`, `scheduled`.
          pretty: prints `pw` operations in a form for people; tools read the generic form.
        """
        text = self._forms.text(phase)
        return for_people(text) if pretty else text

    @boundary
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a bundle: a file that `pathways.load` and `pw-run` run without the code of the program.

        Args:
          path: the file, by custom `*.pwb`.

        Raises:
          BundleError: the program calls back into Python, or its arguments have no names in a file.
          OSError: the file cannot be written.
        """
        self._save(path, {})

    @boundary
    def compile(self) -> Compiled:
        """Binds the slices to devices, compiles every computation, and generates the launch path.

        Raises:
          ResourceError: there are too few devices; says how many there are and what uses them. Or they have
            too little memory; says how much each slice needs.
          CompileError: XLA rejects a computation; names it.
        """
        return Compiled(self, self.load(strict=False))

    def load(self, *, strict: bool) -> ProgramExecutable:
        """Compiles the program, and returns the executable below `compile`'s result.

        Args:
          strict: whether arguments of other weak types have another signature. They do if they would be
            traced again; code that was compiled ahead accepts both, as with `jax.jit`.
        """
        executable = self.load_once(strict=strict)
        slices = [*self._written.slices.values()]
        # All slices of a program have one number of replicas.
        if self._options is None or not slices or slices[0].device_set.replicas == 1 or slices[0].replica:
            return executable
        loader = _ProgramReloader(
            self._forms.bytecode[PHASES[0]],
            {len(slices[0].running): self._forms.bytecode[PHASES[-1]]},
            self.name,
            self._options,
            self._written,
            dataclasses.replace(self._signature, strict=strict),
            {"callbacks": self._callbacks, "keepalive": self._keepalive, "schedule": self.schedule},
        )
        return ReplicaExecutable(executable, loader, slices)

    def load_once(self, *, strict: bool) -> ProgramExecutable:
        """Compiles the program for the replicas that run, as `load` does; other replicas never run it."""
        # With `jax_debug_nans`, an error names the line that a value comes from.
        plan = plan_of(self._forms.scheduled, self.name, proved=True, located=pjrt.checks_values())
        program = Scheduled(
            self._forms.scheduled,
            plan,
            self._interface,
            dataclasses.replace(self._signature, strict=strict),
            self._callbacks,
            self._keepalive,
        )
        return load_program(program, program.bind())

    def _save(self, path: str | os.PathLike[str], requests: Mapping[str, Sequence[Request]]) -> None:
        save(path, self._forms.scheduled, self.name, self._interface, self._signature, requests)


class ChunkedLowered(Lowered):
    """Program of sub-programs, each in all forms of the IR; its plan is the plan of a chunk.

    Args:
      forms: the whole program.
      interface: the arguments, results and slices of the whole.
      more: the other arguments of `Lowered`.
    """

    def __init__(self, forms: Forms, interface: Interface, signature: Signature, **more: Any) -> None:
        self._calls = calls_of(forms.scheduled)
        ports = subprogram_ports(self._calls, interface, signature.context)
        self._subprograms: dict[str, Lowered] = {}
        for module in parts_of(forms.scheduled):
            name = symbol_name(module.operation.opview) or ""
            subforms = Forms(f"{forms.name}_{name}", copy_of(module), {}, ())
            self._subprograms[name] = Lowered(subforms, *ports[name], **more)
        chunk = self._subprograms[self._calls.repeated]
        super().__init__(forms, interface, signature, **more)
        self._interface = dataclasses.replace(interface, slices=chunk.slices)

    @property
    def args_info(self) -> Any:
        """`(args, kwargs)` with a `jax.stages.ArgInfo` for each: its type, and whether it is consumed."""
        donated = self._calls.donated
        return self._signature.tree.unflatten(
            jax.stages.ArgInfo(aval, n in donated) for n, aval in enumerate(self.in_avals)
        )

    @override
    def load_once(self, *, strict: bool) -> ProgramExecutable:
        if is_served():
            return self._load_proxied(strict=strict)
        subprograms = {name: lowered.load_once(strict=False) for name, lowered in self._subprograms.items()}
        signature = dataclasses.replace(self._signature, strict=strict)
        return ChunkedExecutable(self._calls, subprograms, self._interface, signature, self.name)

    def _load_proxied(self, *, strict: bool) -> ProgramExecutable:
        """Has a server compile the whole program, and run its loops."""
        plans = {
            name: plan_of(lowered._forms.scheduled, lowered.name, proved=True)
            for name, lowered in self._subprograms.items()
        }
        program = Scheduled(
            self._forms.scheduled,
            plans[self._calls.repeated],
            self._interface,
            dataclasses.replace(self._signature, strict=strict),
            keepalive=self._keepalive,
        )
        return load_proxied(program, program.bind(), self._calls.plan_of_ports(self.name, plans), plans)


class Bound(ProcessBound):
    """Program bound to devices: the common base of `Compiled` and `LoadedProgram`.

    Attributes:
      executable: the loaded program.
    """

    def __init__(self, executable: ProgramExecutable) -> None:
        self.executable = executable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program and returns at once, with arrays that become ready later.

        Raises:
          TypeError: an argument has not the shape, dtype or structure that it was compiled for. Weak types do
            not count: a number may be passed for an array of its dtype, and the other way round.
        """
        # As `boundary`, without the time of a wrapper.
        try:
            leaves, tree = jax_internals.flatten((args, kwargs))
            executable = self.executable
            if tree == executable.tree:
                result = executable.try_fast_path(leaves)
                if result is not CACHE_MISS:
                    return result
            return executable.execute(executable.transfer_or_raise(leaves, tree))
        except Exception as error:
            filter_traceback(error)
            raise

    @property
    def in_avals(self) -> tuple[Any, ...]:
        """Abstract values of the flat arguments."""
        return self.executable.interface.in_avals

    @property
    def out_tree(self) -> Any:
        """The structure of the results."""
        return self.executable.interface.out_tree

    @property
    def out_info(self) -> Any:
        """Tree like the results, with a `jax.ShapeDtypeStruct` for each with its sharding.

        On hosts the sharding is over a mesh without devices; `checkpoint.restore` finds its devices.
        """
        return self.out_tree.unflatten(self.executable.result_types())

    def argument_info(self, name: str) -> Any:
        """Returns a tree like an argument, with a `jax.ShapeDtypeStruct` and sharding for each array.

        Raises:
          ValueError: there is no such argument, or it has no leaves.
        """
        numbers, tree = self.executable.argument(name)
        return tree.unflatten(self.executable.argument_types(numbers))

    @property
    def input_shardings(self) -> Any:
        """`(args, kwargs)` with the sharding of each argument that no call has to move.

        None for an argument that nothing reads; of one that slices share, the sharding on the first.
        """
        return self.executable.tree.unflatten(self.executable.argument_shardings)

    @property
    def output_shardings(self) -> Any:
        """Tree like the results, with the sharding of each; of one on more slices, that on the first."""
        return self.out_tree.unflatten(self.executable.result_shardings)

    @property
    def slices(self) -> Mapping[str, VirtualSlice]:
        """The virtual slices that it runs on, by their names in the program."""
        return self.executable.interface.slices

    @boundary
    def place(self, *args: Any) -> tuple[Any, ...]:
        """Puts arguments on the slices that read them, so that calls need not move them.

        Args:
          *args: the first positional arguments of a call, in any number, without static ones.

        Returns:
          As many arrays. An array that is in place already is not copied, unless the slice may share its
            devices (`overlap=True`). Copies stay valid when the original arrays are donated. A copy of a
            NumPy array above 64 KiB may share its memory.

        Raises:
          TypeError: an argument has not the expected shape, dtype or structure.

        Example:
          ```python
          (weights,) = evaluate.place(weights)
          for batch in batches:
              evaluate(weights, batch)
          ```
        """
        leaves, tree = jax_internals.flatten(args)
        structure, _ = self.executable.tree.children()
        expected = structure.children()[: len(args)]
        if tree.children() != expected:
            raise TypeError(
                f"program '{self.executable.name}' takes arguments of structure {structure}, but {tree} "
                "is not a prefix of it"
            )
        return tree.unflatten(self.executable.put_arguments(dict(enumerate(leaves)), copy=True).values())

    @property
    def plan(self) -> Plan:
        """The scheduled program, flattened."""
        return self.executable.plan

    def cost_analysis(self) -> dict[str, Any]:
        """Counts the work of one call.

        Returns:
          `launches` and `transfers` between slices, `bytes transferred` by them, and the `flops` of all
          computations by XLA's estimate, on all devices together. `argument bytes transferred` are
          the bytes that a call moves before it starts, if it is passed results of the last one (updated
          parameters, a donated state) that are on other slices than the arguments that they replace.

        Raises:
          HostError: a host of the program was lost.
        """
        launches = [s for s in self.plan.steps if isinstance(s, Launch)]
        counts = collections.Counter((s.computation, s.slice) for s in launches)
        transfers = [s for s in self.plan.steps if isinstance(s, Transfer)]
        return {
            "launches": len(launches),
            "transfers": len(transfers),
            "bytes transferred": sum(self.plan.bytes_moved(t) for t in transfers),
            "argument bytes transferred": self.plan.argument_bytes_moved(),
            "flops": sum(self.flops(*pair) * n for pair, n in counts.items()),
        }

    def flops(self, computation: str, slice: str) -> float:
        """Returns the floating-point operations of one launch on a slice, by XLA's estimate, on all
        devices."""
        return self.executable.flops(computation, slice)

    def memory_analysis(self) -> MemoryAnalysis:
        """Returns the memory that one call needs on each slice, in bytes over all devices of the slice.

        Returns:
          By the name of the slice, a `SliceMemory`: arguments, results, temporaries, and the peak of bytes
          alive
            at once, under the names of `jax.stages.Compiled.memory_analysis()`. `print` shows a table.

        On hosts, received values count from the beginning and sent values up to the end. Up to four calls may
        be in flight there.

        Raises:
          HostError: a host of the program was lost.
        """
        return self.executable.memory_analysis()

    @boundary
    def timeline(
        self,
        times: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        latency: str | float | None = None,
        bandwidth: str | float | None = None,
    ) -> Timeline:
        """Simulates one call by a replay of the plan; nothing is executed.

        Args:
          times: the duration of launches, as `{"kinds": {"fwd": "1ms", "bwd": "2ms"}}`; see
            `passes.analysis.times` for the format. Or the path of such a JSON file, or of a file that
            `pw.trace` wrote. Or a word: `flops` for the operations of placed calls on each device, `units`
            for one unit of time for each call. By default the times that the schedule was computed with:
            `flops` for `search`, and `units` for policies without `times`.
          latency: of links between slices, such as `5us`; none by default.
          bandwidth: of links between slices, such as `10GB/s`; no limit by default.

        Returns:
          The timeline: `step_time`, `bubble(slice)`, `peak_bytes(slice)`, `critical_path`, `events`; with
          `save_html(path)` and `save_trace(path)`.

        Raises:
          TimesError: names the entry that is wrong.
          OSError: the file cannot be read.
        """
        stated = stated_times(times, self.plan) if times is None or isinstance(times, str) else None
        if stated is not None:
            durations: ReplayTimes = stated[0]
            name = stated[1]
        elif isinstance(times, (str, os.PathLike)):
            durations = times_in(Path(times).read_bytes(), self.plan)
            name = f"times={Path(times).name}"
        else:
            durations = read_times(times or {}, self.plan)
            name = "times given"
        link = read_link(latency, bandwidth, durations.unit)
        return simulate(self.plan, durations, link, title_of(name, link, planned=stated is not None))


class Compiled(Bound):
    """Program bound to devices: call it with arguments of the signature it was lowered for."""

    def __init__(self, lowered: Lowered, executable: ProgramExecutable) -> None:
        super().__init__(executable)
        self._lowered = lowered

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {fact}" for name, fact in self._facts())
        return f"<compiled program {self._lowered.name}: {facts}>"

    def _repr_html_(self) -> str:
        """Returns its schedule, slices and launches, and the memory of slices, as HTML for a notebook."""
        facts = html_table([*zip(*self._facts(), strict=True)])
        memory = "" if self.executable.is_lost else self.memory_analysis()._repr_html_()
        return (
            f"<p>compiled program <b>{escape(self._lowered.name)}</b></p>{facts}{memory}"
            "<p><code>timeline()</code> simulates a call, <code>as_text(phase)</code> has all forms</p>"
        )

    def _facts(self) -> list[tuple[str, str]]:
        """Returns its schedule, its slices, and the number of its launches."""
        of_loops = (op.schedule for op in ops_named(self._lowered._forms.scheduled, ["pw.loop"]))
        schedule = self._lowered.schedule or " ".join(dict.fromkeys(filter(None, of_loops)))
        launches = sum(isinstance(step, Launch) for step in self.plan.steps)
        facts = [("schedule", schedule), ("slices", " ".join(self.slices)), ("launches", str(launches))]
        return [(name, fact) for name, fact in facts if fact]

    @property
    def args_info(self) -> Any:
        """See `Lowered.args_info`."""
        return self._lowered.args_info

    def as_text(self, phase: str = "scheduled") -> str:
        """Returns the module after a phase; see `Lowered.as_text`.

        Args:
          phase: such a phase, or `device` for XLA's optimized module of each computation on each slice.
        """
        return self.executable.device_text() if phase == "device" else self._lowered.as_text(phase)

    @boundary
    def save(self, path: str | os.PathLike[str], *, executables: bool = False) -> None:
        """Writes a bundle, as `Lowered.save` does.

        Args:
          path: the file, by custom `*.pwb`.
          executables: also store XLA's code, for equal machines whose processes trust the file.

        Raises:
          BundleError: see `Lowered.save`.
          CompileError: the platform cannot serialise its executables.
        """
        self._lowered._save(path, self.executable.requests() if executables else {})


@dataclasses.dataclass
class _ProgramReloader:
    """Loader of a program for some of its replicas, without tracing; see `ReplicaLoader`.

    Attributes:
      module: the program as JAX lowers it, of one replica.
      scheduled: the last form of the program for numbers of replicas that it was lowered for.
      interface: its arguments, results and slices, of the first replica.
      more: further arguments of `Lowered`.
    """

    module: bytes
    scheduled: dict[int, bytes]
    name: str
    options: Options
    interface: Interface
    signature: Signature
    more: Mapping[str, Any]

    def microbatches(self) -> tuple[int, ...]:
        """Returns the number of microbatches of each loop."""
        with make_context():
            return tuple(op.count for op in ops_named(ir.Module.parse(self.module), ["pw.loop"]))

    def load(self, running: tuple[int, ...]) -> ProgramExecutable:
        """Loads the program on the slices of some replicas."""
        # Which replicas run changes their devices alone: all that passes see is how many there are.
        count = len(running)
        if count not in self.scheduled:
            self.scheduled[count] = self._lower(count).bytecode[PHASES[-1]]
        with make_context() as context:
            forms = Forms(self.name, ir.Module.parse(self.scheduled[count], context), {}, ())
        lowered = lowered_of(forms, self.interface, self.signature, running=running, **self.more)
        return lowered.load_once(strict=self.signature.strict)

    def _lower(self, count: int) -> Forms:
        with make_context() as context:
            module = ir.Module.parse(self.module, context)
            for op in ops_named(module, ["pw.slice"]):
                op.replicas = count if count > 1 else None
        return run_phases(module, self.name, self.options)


def lowered_of(forms: Forms, interface: Interface, signature: Signature, **more: Any) -> Lowered:
    """Returns a lowered program, of sub-programs or not; `more` are further arguments of `Lowered`."""
    kind = ChunkedLowered if form_of(forms.scheduled) == PARTS.name else Lowered
    return kind(forms, interface, signature, **more)
