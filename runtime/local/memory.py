"""Memory of programs: their use of the devices of their slices, and the check that it fits."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pathways.passes.schedule.memory.live_bytes import LiveBytes
from pathways.runtime.plan.lifetimes import BEFORE, slot_changes
from pathways.runtime.plan.plan import Argument, Launch, Plan, Result, Send
from pathways.runtime.plan.sub_programs import SubProgramCall, SubProgramCalls
from pathways.runtime.resources.manager import Binding, ResourceError
from pathways.runtime.timelines.tables import html_table, size, table

Stats = Mapping[tuple[str, str], Any]
"""XLA's analysis of each computation on each slice, by their names; see `load.stats_of`."""


@dataclasses.dataclass(frozen=True)
class SliceMemory:
    """Memory that one call of a program uses on a slice, in bytes over all its devices together.

    The devices of a slice use equal amounts. The names are those of `jax.stages.Compiled.memory_analysis()`.

    Attributes:
      devices: the number of devices.
      argument_size_in_bytes: the arguments that are read there, and the arrays that the program closes over.
      output_size_in_bytes: the results.
      alias_size_in_bytes: the donated arguments: their buffers are reused for values of the same type and
        sharding, or freed.
      temp_size_in_bytes: the temporaries of the launch with the largest ones, by XLA's own analysis. They
        live as long as their launch.
      generated_code_size_in_bytes: the code of the computations; not included in the peak.
      peak_memory_in_bytes: the maximum that is live at any time, if the steps run in the order of the plan:
        arguments, intermediates, results, and the temporaries of the running launch.
    """

    devices: int
    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int
    peak_memory_in_bytes: int


class MemoryAnalysis(dict[str, SliceMemory]):
    """Memory of each slice of a program, by the name of the slice; `str` formats it as a table."""

    def __str__(self) -> str:
        return table(self._rows())

    def _repr_html_(self) -> str:
        """Returns the table, for a notebook."""
        return html_table(self._rows())

    def _rows(self) -> list[tuple[str, ...]]:
        header = (
            "slice",
            "devices",
            "arguments",
            "results",
            "donated",
            "temporaries",
            "code",
            "peak",
            "peak of a device",
        )
        rows = [
            (
                name,
                str(memory.devices),
                size(memory.argument_size_in_bytes),
                size(memory.output_size_in_bytes),
                size(memory.alias_size_in_bytes),
                size(memory.temp_size_in_bytes),
                size(memory.generated_code_size_in_bytes),
                size(memory.peak_memory_in_bytes),
                size(memory.peak_memory_in_bytes // memory.devices),
            )
            for name, memory in self.items()
        ]
        return [header, *rows]


def analyze(plan: Plan, stats: Mapping[tuple[str, str], Any]) -> MemoryAnalysis:
    """Returns the memory that one call of a program uses.

    Args:
      plan: the program.
      stats: the result of `load.stats_of` for its computations. Temporaries and code of others count as zero.
    """
    names = list(plan.slices)
    peaks = dict(zip(names, _peaks(plan, stats, [[name] for name in names]), strict=True))
    analysis = MemoryAnalysis()
    for name, spec in plan.slices.items():
        arguments = {a.slots[name]: a.donated for a in plan.arguments if name in a.slots}
        results = [result.slots[name] for result in plan.results if name in result.slots]
        nbytes = {slot: plan.shard_type(slot).nbytes for slot in (*arguments, *results)}
        of_slice = [value for (_, on), value in stats.items() if on == name]
        of_a_device = {
            "argument_size_in_bytes": sum(nbytes[slot] for slot in arguments),
            "output_size_in_bytes": sum(nbytes[slot] for slot in results),
            "alias_size_in_bytes": sum(nbytes[slot] for slot, donated in arguments.items() if donated),
            "temp_size_in_bytes": max((value.temp_size_in_bytes for value in of_slice), default=0),
            "generated_code_size_in_bytes": sum(value.generated_code_size_in_bytes for value in of_slice),
            "peak_memory_in_bytes": peaks[name],
        }
        sizes = {field: spec.size * count for field, count in of_a_device.items()}
        analysis[name] = SliceMemory(spec.size, **sizes)
    return analysis


def analyze_sub_programs(
    calls: SubProgramCalls, plans: Mapping[str, Plan], analyses: Mapping[str, MemoryAnalysis]
) -> MemoryAnalysis:
    """Returns the memory that one call of a program of several sub-programs uses.

    While a sub-program runs, values of others are live, too: arguments that the caller keeps, results that
    later calls read, and the arrays that other sub-programs close over.

    Args:
      calls: the calls of the sub-programs.
      plans: the plan of each sub-program.
      analyses: the memory that one call of each sub-program uses.
    """
    sizes: dict[int, dict[str, int]] = {}
    constants: dict[str, dict[str, int]] = {}
    for call in calls.calls:
        plan = plans[call.sub_program]
        passed = [argument for argument in plan.arguments if argument.constant is None]
        ports: list[Argument | Result] = [*passed, *plan.results]
        for number, port in zip((*call.operands, *call.results), ports, strict=True):
            sizes.setdefault(number, {}).update(_bytes_by_slice(plan, port))
        constants[call.sub_program] = _sum(
            _bytes_by_slice(plan, a) for a in plan.arguments if a.constant is not None
        )
    arguments = range(len(calls.arguments))
    producers = {n: k for k, call in enumerate(calls.calls) for n in call.results}
    last = {n: k for k, call in enumerate(calls.calls) for n in call.operands}
    # Arguments that are not donated are live until the end.
    last |= dict.fromkeys(set(arguments) - calls.donated, len(calls.calls))

    def other_bytes(k: int, call: SubProgramCall) -> Mapping[str, int]:
        """Returns the live bytes on each slice that are not of the call itself."""
        # The operands and results of the call are in its own analysis. Arguments, which have no producer, are
        # live from before call 0.
        waiting = [
            size
            for n, size in sizes.items()
            if n not in call.operands and producers.get(n, -1) < k < last.get(n, -1)
        ]
        return _sum([*waiting, *(of for name, of in constants.items() if name != call.sub_program)])

    in_addition = [other_bytes(k, call) for k, call in enumerate(calls.calls)]
    analysis = MemoryAnalysis()
    for name, of_last in analyses[calls.calls[-1].sub_program].items():
        of_calls = [analyses[call.sub_program][name] for call in calls.calls]
        analysis[name] = SliceMemory(
            of_last.devices,
            sum(sizes.get(n, {}).get(name, 0) for n in arguments)
            + sum(c.get(name, 0) for c in constants.values()),
            of_last.output_size_in_bytes,
            sum(sizes.get(n, {}).get(name, 0) for n in calls.donated),
            max(memory.temp_size_in_bytes for memory in of_calls),
            sum(memory.generated_code_size_in_bytes for memory in of_calls),
            max(
                memory.peak_memory_in_bytes + additional.get(name, 0)
                for memory, additional in zip(of_calls, in_addition, strict=True)
            ),
        )
    return analysis


def _bytes_by_slice(plan: Plan, port: Argument | Result) -> dict[str, int]:
    """Returns the bytes of an argument or result on each slice, over all its devices together."""
    return {name: plan.shard_type(slot).nbytes * plan.slices[name].size for name, slot in port.slots.items()}


def _sum(sizes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the sum for each slice."""
    total: Counter[str] = Counter()
    for by_slice in sizes:
        total.update(by_slice)
    return dict(total)


def check_fits(plan: Plan, bindings: Mapping[str, Binding], stats: Stats | None) -> None:
    """Checks that the devices of a program have the memory that one call of it uses.

    Other arrays on the devices are unknown here, and do not count. Devices that do not report their memory
    are not checked.

    Args:
      plan: the program.
      bindings: the devices of its slices.
      stats: XLA's analysis of its computations; None before they are compiled, when temporaries do not count
        yet.

    Raises:
      ResourceError: they have less; the message names the slice, and lists the memory of all slices.
    """
    if all(binding.device_memory is None for binding in bindings.values()):
        return
    groups = _sharing(bindings)
    for group, need in zip(groups, _peaks(plan, stats or {}, groups), strict=True):
        limits = [m for name in group if (m := bindings[name].device_memory) is not None]
        if limits and need > min(limits):
            subject = f"slice {group[0]} needs"
            if len(group) > 1:
                subject = f"slices {', '.join(group)}, which share devices, need"
            without = ", without the temporaries of its computations" if stats is None else ""
            raise ResourceError(
                f"program {plan.name}: {subject} {_exact_size(need)} on each device{without}; a device has "
                f"{_exact_size(min(limits))}\n{analyze(plan, stats or {})}"
            )


def _exact_size(count: int) -> str:
    return f"{size(count)} ({count:,} bytes)"


def _sharing(bindings: Mapping[str, Binding]) -> list[list[str]]:
    """Returns the groups of slices that share a device, each group once."""
    on_device: dict[int, list[str]] = {}
    for name, binding in bindings.items():
        for position in binding.positions:
            on_device.setdefault(position, []).append(name)
    return [list(group) for group in dict.fromkeys(map(tuple, on_device.values()))]


def _peaks(plan: Plan, stats: Mapping[tuple[str, str], Any], groups: Sequence[Sequence[str]]) -> list[int]:
    """Returns the maximum of live bytes on a device, for each group of slices that share it.

    Args:
      plan: the program.
      stats: XLA's analysis of computations on slices, for the temporaries of their launches.
      groups: names of slices.
    """
    members = {name: [n for n, group in enumerate(groups) if name in group] for name in plan.slices}
    live: LiveBytes[int] = LiveBytes()

    def add(name: str, count: int) -> None:
        for group in members[name]:
            live.add(group, count)

    def remove(name: str, count: int) -> None:
        for group in members[name]:
            live.remove(group, count)

    for changes in slot_changes(plan):
        for slot in changes.freed:
            remove(plan.slot_slices[slot], plan.shard_type(slot).nbytes)
        for slot in changes.filled:
            add(plan.slot_slices[slot], plan.shard_type(slot).nbytes)
        step = None if changes.step == BEFORE else plan.steps[changes.step]
        if isinstance(step, Launch) and (step.computation, step.slice) in stats:
            temporaries = stats[step.computation, step.slice].temp_size_in_bytes
            add(step.slice, temporaries)
            remove(step.slice, temporaries)
        # Never removed: the copy lives at least until the end of the step, see `Send`.
        if isinstance(step, Send) and step.copy:
            add(step.src, sum(plan.shard_type(slot).nbytes for slot in step.operands))
    for number, result in enumerate(plan.results):
        for name, slot in result.slots.items():
            if plan.uncopied_slots.get(slot) != number:
                add(name, plan.shard_type(slot).nbytes)
    return [live.peak.get(group, 0) for group in range(len(groups))]
