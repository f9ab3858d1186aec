"""Memory of programs: their use of the devices of their slices, and the check that it fits."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pathways.passes.schedule.memory.live_bytes import LiveBytes
from pathways.runtime.plan.lifetimes import BEFORE, slot_changes
from pathways.runtime.plan.plan import Argument, Launch, Plan, Result, Send, Slot
from pathways.runtime.plan.sub_programs import SubProgramCall, SubProgramCalls
from pathways.runtime.resources.manager import Binding, ResourceError
from pathways.runtime.resources.tables import html_table, size, table

Stats = Mapping[tuple[str, str], Any]
"""XLA's analysis of each computation on each slice, by their names; see `load.stats_of`."""


@dataclasses.dataclass(frozen=True)
class SliceMemory:
    """Memory that one call of a program uses on a slice, in bytes over all its devices together.

    The devices of a slice use equal amounts. Names are as in `jax.stages.Compiled.memory_analysis()`: fields
    that start with `host_` count memory of the host that devices use, such as `pinned_host`, and all others
    the default memory of the devices.

    Attributes:
      argument_size_in_bytes: the arguments that are read there, and the arrays that the program closes over.
      output_size_in_bytes: the results.
      alias_size_in_bytes: the donated arguments: their buffers are reused for values of the same type and
        sharding, or freed.
      temp_size_in_bytes: the temporaries of the launch with the largest ones, by XLA's own analysis. They
        live as long as their launch.
      generated_code_size_in_bytes: the code of the computations; not included in the peak.
      peak_memory_in_bytes: the maximum that is live at any time, if the steps run in the order of the plan:
        arguments, intermediates, results, and the temporaries of the running launch.
      host_output_size_in_bytes: the results there.
      host_alias_size_in_bytes: the donated arguments there.
      host_temp_size_in_bytes: the temporaries there, by XLA's own analysis.
      host_peak_memory_in_bytes: the maximum that is live there at any time.
    """

    devices: int
    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int
    peak_memory_in_bytes: int
    host_argument_size_in_bytes: int = 0
    host_output_size_in_bytes: int = 0
    host_alias_size_in_bytes: int = 0
    host_temp_size_in_bytes: int = 0
    host_peak_memory_in_bytes: int = 0


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
        uses_host = any(memory.host_peak_memory_in_bytes for memory in self.values())
        rows: list[tuple[str, ...]] = [
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
                *([size(memory.host_peak_memory_in_bytes)] if uses_host else []),
            )
            for name, memory in self.items()
        ]
        return [(*header, *(["peak in host memory"] if uses_host else [])), *rows]


def analyze(plan: Plan, stats: Mapping[tuple[str, str], Any]) -> MemoryAnalysis:
    """Returns the memory that one call of a program uses.

    Args:
      stats: the result of `load.stats_of` for its computations. Temporaries and code of others count as zero.
    """
    names = list(plan.slices)
    # By the prefix of the names of fields.
    kinds = {"": False, **({"host_": True} if plan.slot_kinds else {})}
    groups = [[name] for name in names]
    peaks = {
        prefix: dict(zip(names, _peaks(plan, stats, groups, on_host=on_host), strict=True))
        for prefix, on_host in kinds.items()
    }
    analysis = MemoryAnalysis()
    for name, spec in plan.slices.items():
        of_slice = [value for (_, on), value in stats.items() if on == name]
        of_a_device = {
            "generated_code_size_in_bytes": sum(value.generated_code_size_in_bytes for value in of_slice)
        }
        for prefix, on_host in kinds.items():
            temporaries = f"{prefix}temp_size_in_bytes"
            of_a_device |= {
                f"{prefix}{field}": count for field, count in _port_bytes(plan, name, on_host).items()
            }
            of_a_device[temporaries] = max((getattr(value, temporaries) for value in of_slice), default=0)
            of_a_device[f"{prefix}peak_memory_in_bytes"] = peaks[prefix][name]
        sizes = {field: spec.size * count for field, count in of_a_device.items()}
        analysis[name] = SliceMemory(spec.size, **sizes)
    return analysis


def _port_bytes(plan: Plan, name: str, on_host: bool) -> dict[str, int]:
    """Returns the bytes of arguments and results on each device of a slice, in one of its memories."""
    arguments = {a.slots[name]: a.donated for a in plan.arguments if name in a.slots}
    results = [result.slots[name] for result in plan.results if name in result.slots]
    nbytes = {slot: _nbytes(plan, slot, on_host) for slot in (*arguments, *results)}
    return {
        "argument_size_in_bytes": sum(nbytes[slot] for slot in arguments),
        "output_size_in_bytes": sum(nbytes[slot] for slot in results),
        "alias_size_in_bytes": sum(nbytes[slot] for slot, donated in arguments.items() if donated),
    }


def _nbytes(plan: Plan, slot: Slot, on_host: bool) -> int:
    """Returns the bytes of a slot on each device in one of its memories; 0 if the slot is in the other."""
    is_there = (plan.memory_kind(slot) is not None) == on_host
    return plan.shard_type(slot).nbytes if is_there else 0


def analyze_sub_programs(
    calls: SubProgramCalls, plans: Mapping[str, Plan], analyses: Mapping[str, MemoryAnalysis]
) -> MemoryAnalysis:
    """Returns the memory that one call of a program of several sub-programs uses.

    While a sub-program runs, values of others are live, too: arguments that the caller keeps, results that
    later calls read, and the arrays that other sub-programs close over.
    """
    prefixes = ["", "host_"] if any(plan.slot_kinds for plan in plans.values()) else [""]
    of_memories = {prefix: _of_calls(calls, plans, analyses, prefix) for prefix in prefixes}
    analysis = MemoryAnalysis()
    for name, of_last in analyses[calls.calls[-1].sub_program].items():
        codes = [analyses[call.sub_program][name].generated_code_size_in_bytes for call in calls.calls]
        sizes = {field: n for of_memory in of_memories.values() for field, n in of_memory[name].items()}
        analysis[name] = SliceMemory(of_last.devices, generated_code_size_in_bytes=sum(codes), **sizes)
    return analysis


def _of_calls(
    calls: SubProgramCalls, plans: Mapping[str, Plan], analyses: Mapping[str, MemoryAnalysis], prefix: str
) -> dict[str, dict[str, int]]:
    """Returns, for each slice, the fields of one of its memories, whose names have the prefix."""
    on_host = bool(prefix)
    sizes: dict[int, dict[str, int]] = {}
    constants: dict[str, dict[str, int]] = {}
    for call in calls.calls:
        plan = plans[call.sub_program]
        passed = [argument for argument in plan.arguments if argument.constant is None]
        ports: list[Argument | Result] = [*passed, *plan.results]
        for number, port in zip((*call.operands, *call.results), ports, strict=True):
            sizes.setdefault(number, {}).update(_bytes_by_slice(plan, port, on_host))
        constants[call.sub_program] = _sum(
            _bytes_by_slice(plan, a, on_host) for a in plan.arguments if a.constant is not None
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
    stats_by_slice = {}
    for name, of_last in analyses[calls.calls[-1].sub_program].items():
        of_calls = [analyses[call.sub_program][name] for call in calls.calls]
        peaks = [getattr(memory, f"{prefix}peak_memory_in_bytes") for memory in of_calls]
        sizes_on_slice = {n: size.get(name, 0) for n, size in sizes.items()}
        stats_by_slice[name] = {
            f"{prefix}argument_size_in_bytes": sum(sizes_on_slice.get(n, 0) for n in arguments)
            + sum(c.get(name, 0) for c in constants.values()),
            f"{prefix}output_size_in_bytes": getattr(of_last, f"{prefix}output_size_in_bytes"),
            f"{prefix}alias_size_in_bytes": sum(sizes_on_slice.get(n, 0) for n in calls.donated),
            f"{prefix}temp_size_in_bytes": max(
                getattr(memory, f"{prefix}temp_size_in_bytes") for memory in of_calls
            ),
            f"{prefix}peak_memory_in_bytes": max(
                peak + additional.get(name, 0) for peak, additional in zip(peaks, in_addition, strict=True)
            ),
        }
    return stats_by_slice


def _bytes_by_slice(plan: Plan, port: Argument | Result, on_host: bool) -> dict[str, int]:
    """Returns the bytes of an argument or result on each slice, over all its devices together."""
    return {name: _nbytes(plan, slot, on_host) * plan.slices[name].size for name, slot in port.slots.items()}


def _sum(sizes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the sum for each slice."""
    total: Counter[str] = Counter()
    for by_slice in sizes:
        total.update(by_slice)
    return dict(total)


def check_fits(
    plan: Plan,
    bindings: Mapping[str, Binding],
    stats: Stats | None,
    count_here: Callable[[Binding], int] = lambda binding: len(binding.devices),
) -> None:
    """Checks that the devices of a program have the memory that one call of it uses.

    Other arrays on the devices are unknown here, and do not count. The CPU devices of this process share the
    memory of its machine. Other devices that do not report their memory are not checked.

    Args:
      bindings: the devices of its slices.
      stats: XLA's analysis of its computations; None before they are compiled, when temporaries do not count
        yet.
      count_here: returns the number of devices of a slice that are of this process; by default all of them.

    Raises:
      ResourceError: they have less; the message names the slice, and lists the memory of all slices.
    """
    cpus = {name: binding for name, binding in bindings.items() if binding.devices[0].platform == "cpu"}
    _check_machine(plan, stats, {name: count_here(binding) for name, binding in cpus.items()})
    if all(binding.device_memory is None for binding in bindings.values()):
        return
    groups = _sharing(bindings)
    for group, need in zip(groups, _peaks(plan, stats or {}, groups), strict=True):
        limits = [m for name in group if (m := bindings[name].device_memory) is not None]
        if limits and need > min(limits):
            subject = f"slice {group[0]} needs"
            if len(group) > 1:
                subject = f"slices {', '.join(group)}, which share devices, need"
            raise ResourceError(
                f"program {plan.name}: {subject} {_exact_size(need)} on each device{_without(stats)}; "
                f"a device has {_exact_size(min(limits))}\n{analyze(plan, stats or {})}"
            )


def _check_machine(plan: Plan, stats: Stats | None, counts: Mapping[str, int]) -> None:
    """Checks that all CPU devices of this process fit into the memory of its machine (ResourceError)."""
    limit, owner = machine_memory()
    # Most programs are far below the limit.
    if _bytes_of_all_slots(plan, stats or {}, counts) <= limit:
        return
    (need,) = _peaks(plan, stats or {}, [[*counts]], counts=counts)
    if need > limit:
        raise ResourceError(
            f"program {plan.name}: slices {', '.join(counts)} need {_exact_size(need)} on all CPU devices of "
            f"this process together{_without(stats)}; {owner} {_exact_size(limit)}\n"
            f"{analyze(plan, stats or {})}"
        )


def _bytes_of_all_slots(plan: Plan, stats: Stats, counts: Mapping[str, int]) -> int:
    """Returns a bound of the bytes that a plan needs on so many devices of its slices, without its order."""
    arrays = (plan.slot_types[slot].nbytes * counts.get(name, 0) for slot, name in plan.slot_slices.items())
    temporaries = (_temporaries(of) * counts.get(name, 0) for (_, name), of in stats.items())
    # Results, and operands of sends, may be copies.
    return 3 * sum(arrays) + max(temporaries, default=0)


def _temporaries(launch: Any) -> int:
    return launch.temp_size_in_bytes + launch.host_temp_size_in_bytes


def machine_memory() -> tuple[int, str]:
    """Returns the bytes of memory that this process may use, and the subject of a sentence about them."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = min(_limits_of_groups(), default=installed)
    return (group, "the limit of its cgroup is") if group < installed else (installed, "the machine has")


def _limits_of_groups(
    proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[int]:
    """Yields the limits of memory of the control groups that this process is in, of version 2 or 1."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, file = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, file = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        # In a container the path may be one of the machine; then the limit is in the folder on top.
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):
                yield int((folder / file).read_text())
            if folder == top:
                break


def _without(stats: Stats | None) -> str:
    return ", without the temporaries of its computations" if stats is None else ""


def _exact_size(count: int) -> str:
    return f"{size(count)} ({count:,} bytes)"


def _sharing(bindings: Mapping[str, Binding]) -> list[list[str]]:
    """Returns the groups of slices that share a device, each group once."""
    on_device: dict[int, list[str]] = {}
    for name, binding in bindings.items():
        for position in binding.positions:
            on_device.setdefault(position, []).append(name)
    return [list(group) for group in dict.fromkeys(map(tuple, on_device.values()))]


def _peaks(
    plan: Plan,
    stats: Mapping[tuple[str, str], Any],
    groups: Sequence[Sequence[str]],
    *,
    on_host: bool = False,
    counts: Mapping[str, int] | None = None,
) -> list[int]:
    """Returns the maximum of live bytes on a device, for each group of slices that share it.

    Args:
      stats: XLA's analysis of computations on slices, for the temporaries of their launches.
      groups: names of slices.
      on_host: whether to count memory of the host instead of the default memory.
      counts: the number of devices of each slice whose bytes add up, in memories of both kinds; by default
        one. Then arguments count once, since copies of one on CPU devices may share their memory.
    """
    if counts is None:
        nbytes = {slot: _nbytes(plan, slot, on_host) for slot in plan.slot_slices}
    else:
        nbytes = {s: plan.shard_type(s).nbytes * counts.get(name, 0) for s, name in plan.slot_slices.items()}
        for argument in plan.arguments:
            for n, slot in enumerate(argument.slots.values()):
                nbytes[slot] = 0 if n else min(nbytes[slot], argument.type.nbytes)

    def temporaries_of(launch: Any, name: str) -> int:
        if counts is not None:
            return _temporaries(launch) * counts.get(name, 0)
        return launch.host_temp_size_in_bytes if on_host else launch.temp_size_in_bytes

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
            remove(plan.slot_slices[slot], nbytes[slot])
        for slot in changes.filled:
            add(plan.slot_slices[slot], nbytes[slot])
        step = None if changes.step == BEFORE else plan.steps[changes.step]
        if isinstance(step, Launch) and (step.computation, step.slice) in stats:
            temporaries = temporaries_of(stats[step.computation, step.slice], step.slice)
            add(step.slice, temporaries)
            remove(step.slice, temporaries)
        # Never removed: the copy lives at least until the end of the step, see `Send`.
        if isinstance(step, Send) and step.copy:
            add(step.src, sum(nbytes[slot] for slot in step.operands))
    for number, result in enumerate(plan.results):
        for name, slot in result.slots.items():
            if plan.uncopied_slots.get(slot) != number:
                add(name, nbytes[slot])
    return [live.peak.get(group, 0) for group in range(len(groups))]
