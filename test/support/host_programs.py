"""Random programs over slices of one or two devices, and the hosts of their slices."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.passes.bind.bind_slices import BindSlices
from pathways.passes.bind.split_hosts import SplitHosts
from pathways.passes.manager.driver import run_passes
from pathways.passes.schedule.memory.plan_memory import PlanMemory
from pathways.passes.schedule.order.schedule import Schedule
from pathways.passes.schedule.verify_schedule import VerifySchedule

_MAX_OPERANDS = 3

CONTEXT = make_context()


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, list[int]]:
    """Returns a program in unrolled form, and the host of each of its slices."""
    sizes = [draw(st.sampled_from([1, 1, 2])) for _ in range(draw(st.sampled_from([3, 2, 4, 5, 1])))]
    slices = range(len(sizes))
    overlapping = draw(st.sampled_from([0, 0, 2]))
    count = draw(st.sampled_from([2, 3, 4, 1]))
    hosts = [(s + draw(st.sampled_from([0, 0, 1]))) % count for s in slices]
    hosts = [hosts[0] if s < overlapping else host for s, host in enumerate(hosts)]
    lines = ["!x = tensor<4xf32>", 'module @f attributes {pw.form = "unrolled"} {']
    lines += [f'sdy.mesh @mesh{n} = <["x"={n}]>' for n in (1, 2)]
    for s in slices:
        overlap = ", overlap" if s < overlapping else ""
        lines.append(f'"pw.slice"() {{sym_name = "s{s}", mesh = @mesh{sizes[s]}{overlap}}} : () -> ()')
    lines.append('"pw.constant"() {sym_name = "k", value = dense<0.0> : tensor<4xf32>} : () -> ()')
    # The name of each value, and the slices that it is on.
    values: list[tuple[str, list[int]]] = []
    arguments = []
    for n in range(draw(st.integers(1, 4))):
        places = draw(st.lists(st.sampled_from(slices), min_size=1, max_size=3, unique=True))
        donated = ", pw.donated" if draw(st.booleans()) else ""
        arguments.append(f"%a{n}: !x {{pw.slice = {_placement(places)}{donated}}}")
        values.append((f"%a{n}", places))
    if draw(st.booleans()):
        place = draw(st.sampled_from(slices))
        arguments.append(f"%k: !x {{pw.slice = @s{place}, pw.constant = @k}}")
        values.append(("%k", [place]))
    # Launches read none: one that is read counts as received on all slices of the mirror.
    mirrored: list[tuple[str, list[int]]] = []
    body: list[str] = []
    for n in range(draw(st.sampled_from([5, 3, 8, 12, 1]))):
        if draw(st.integers(0, 4)):
            place = draw(st.sampled_from(slices))
            read = []
            for name, places in draw(
                st.lists(st.sampled_from(values), min_size=n % 2, max_size=_MAX_OPERANDS)
            ):
                if place not in places:
                    name = _transfer(draw, name, places, place, sizes, values, body)
                read.append(name)
            body.append(
                f'%v{n}:2 = "pw.launch"({", ".join(read)}) {{callee = @f{len(read)}, slice = @s{place}}} '
                f": ({', '.join(['!x'] * len(read))}) -> (!x, !x)"
            )
            values += [(f"%v{n}#{k}", [place]) for k in range(2)]
        else:
            first, second = (draw(st.sampled_from(values)) for _ in range(2))
            if set(first[1]).isdisjoint(second[1]):
                body.append(f'%v{n} = "pw.mirror"({first[0]}, {second[0]}) : (!x, !x) -> !x')
                mirrored.append((f"%v{n}", [*first[1], *second[1]]))
    returned = draw(st.lists(st.sampled_from([*mirrored, *values]), max_size=4))
    results = ", ".join(f"!x {{pw.slice = {_placement(places)}}}" for _, places in returned)
    lines.append(f"func.func @main({', '.join(arguments)}) -> ({results}) {{")
    lines += body
    names, types = ", ".join(name for name, _ in returned), ", ".join("!x" for _ in returned)
    lines.append(f"return {names} : {types}" if returned else "return")
    lines.append("}")
    for n in range(_MAX_OPERANDS + 1):
        taken = ", ".join(f"%x{k}: !x" for k in range(n))
        lines += [
            f"func.func private @f{n}({taken}) -> (!x, !x) {{",
            "%0 = stablehlo.constant dense<0.0> : tensor<4xf32>",
            "return %0, %0 : !x, !x",
            "}",
        ]
    return "\n".join([*lines, "}"]), hosts


def _transfer(
    draw: st.DrawFn,
    name: str,
    places: list[int],
    target: int,
    sizes: Sequence[int],
    values: list[tuple[str, list[int]]],
    body: list[str],
) -> str:
    """Moves a value, as it is or in pieces with others on its slice; returns its name there."""
    moved = f"%t{len(body)}"
    if sizes[places[0]] == sizes[target] and draw(st.booleans()):
        body.append(f'{moved} = "pw.transfer"({name}) {{slice = @s{target}}} : (!x) -> !x')
        values.append((moved, [target]))
        return moved
    pieces = [name, *(other for other, where in values if where == places)][: draw(st.integers(1, 3))]
    count = draw(st.integers(1, 2))
    routes = [
        number
        for _ in range(count * sizes[target])
        for number in (draw(st.integers(0, len(pieces) - 1)), draw(st.integers(0, sizes[places[0]] - 1)))
    ]
    body.append(
        f'{moved}:{count} = "pw.transfer"({", ".join(pieces)}) {{slice = @s{target}, '
        f"routes = array<i64: {', '.join(map(str, routes))}>}} "
        f": ({', '.join(['!x'] * len(pieces))}) -> ({', '.join(['!x'] * count)})"
    )
    values += [(f"{moved}#{k}", [target]) for k in range(count)]
    return f"{moved}#{draw(st.integers(0, count - 1))}"


def _placement(places: Sequence[int]) -> str:
    names = ", ".join(f"@s{place}" for place in places)
    return f"[{names}]" if len(places) > 1 else names


def scheduled(text: str) -> ir.Module:
    """Returns a program in scheduled form that donates all values that it can."""
    module = ir.Module.parse(text, CONTEXT)
    run_passes(module, [Schedule(), PlanMemory(donate_bytes=0), VerifySchedule()])
    return module


def split(module: ir.Module, hosts: Sequence[int], ahead: int = 1) -> ir.Module:
    """Returns the host programs of a scheduled program; hosts are given by slice."""
    module = ir.Module.parse(str(module), CONTEXT)
    named = ",".join(f"s{s}:{host}" for s, host in enumerate(hosts))
    run_passes(module, [BindSlices(hosts=named), SplitHosts(ahead=ahead)])
    return module
