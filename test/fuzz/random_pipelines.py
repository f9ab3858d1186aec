"""Random pipelines of passes, fit for what a text claims to be or not."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import syntax

from pathways.passes import registry
from pathways.passes.base import options_of
from pathways.passes.pipeline import Options, phases
from pathways.passes.text import item_name

BUILTINS = (
    *("cse", "canonicalize", "symbol-dce", "inline", "sdy-propagation-pipeline", "strip-debuginfo"),
    *("symbol-privatize", "sccp", "topological-sort", "remove-dead-values", "func.func(cse)", "print-ir"),
)
SCHEDULE_FILE = "order.csv"
"""A file of some order, in the folder in which a case runs."""

_STRINGS = {
    "policy": ("program", "gpipe", "1f1b", "interleaved-1f1b", "eager", "fastest"),
    "file": (SCHEDULE_FILE, SCHEDULE_FILE, SCHEDULE_FILE, "no/such.csv", "."),
    "islands": ("named", "all", "none"),
}
_INTEGERS = ("-1", "0", "1", "2", "8", "1000", "65536", "999999999999999999")


def random_pipeline(rng: random.Random, text: str, own: tuple[str, ...]) -> tuple[str, ...]:
    """The passes for a text, each with its options.

    Args:
      rng: what decides.
      text: what the passes will run on; the form that it claims decides where the real pipeline starts.
      own: the pipelines that its file asks for.
    """
    choice = rng.random()
    if choice < 0.08:
        passes: list[str] = []
    elif choice < 0.3:
        passes = [_random_pass(rng)]
    elif choice < 0.62:
        passes = _continued(rng, text)
    elif choice < 0.77 and own:
        return (rng.choice(own),)
    else:
        passes = [_random_pass(rng) for _ in range(rng.randint(2, 4))]
    for _ in range(rng.choice([0, 0, 0, 0, 0, 1, 1, 2])):
        passes.insert(rng.randint(0, len(passes)), rng.choice(BUILTINS))
    return tuple(passes)


def full_pipeline(text: str) -> tuple[str, ...]:
    """All passes that are left for a text, by the form that it claims."""
    claim = syntax.FORM.search(text)
    form = claim[1] if claim else ""
    start = {"imported": 1, "placed": 2, "scheduled": 4}.get(form, 0)
    return tuple(item_name(item) for phase in phases(Options())[start:] for item in phase.passes)


def _continued(rng: random.Random, text: str) -> list[str]:
    """Passes of the real pipeline from the form of a text, up to somewhere."""
    names = list(full_pipeline(text))
    if "pw.loop" in text or not names:
        # A placed program may have been sharded before, and a scheduled one stopped before its end.
        all_names = list(full_pipeline(""))
        names = all_names[rng.randrange(len(all_names)) :] if rng.random() < 0.5 or not names else names
    last = len(names) if rng.random() < 0.5 else rng.randint(1, len(names))
    return [_with_options(rng, name) for name in names[:last]]


def _random_pass(rng: random.Random) -> str:
    return _with_options(rng, rng.choice(registry.names()))


def _with_options(rng: random.Random, name: str) -> str:
    options = [
        f"{field.replace('_', '-')}={_random_value(rng, declared)}"
        for field, declared in options_of(registry.load(name)).items()
        if rng.random() < 0.15
    ]
    return name + (f"{{{' '.join(options)}}}" if options else "")


def _random_value(rng: random.Random, field: dataclasses.Field[Any]) -> str:
    if isinstance(field.default, bool):
        return rng.choice(["true", "false"])
    if isinstance(field.default, int):
        return rng.choice(_INTEGERS)
    return rng.choice(_STRINGS.get(field.name, ("x",)))


def random_order(rng: random.Random) -> str:
    """The text of a schedule file: an order that may be met by a program, or nonsense."""
    if rng.random() < 0.1:
        return rng.choice(["", "\xff", "0F0", ",,,\n,", "0F99999999999999999999", "0F0,0F0", "a,b"])
    count = rng.choice([1, 2, 2, 4])
    rows = []
    for stage in range(rng.choice([1, 2, 2, 4])):
        actions = [f"{stage}F{n}" for n in range(count)] + [f"{stage}B{n}" for n in range(count)]
        if rng.random() < 0.2:
            rng.shuffle(actions)
        rows.append(",".join(actions))
    return "\n".join(rows) + "\n"
