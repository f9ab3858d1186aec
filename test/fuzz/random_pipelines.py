"""Random pipelines of passes, which may or may not accept the form that a text claims."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import syntax

from pathways.dialect import FORMS
from pathways.passes.manager import registry
from pathways.passes.manager.base import options_of
from pathways.passes.manager.text import item_name
from pathways.passes.pipeline import Options, phases_after

BUILTINS = (
    *("cse", "canonicalize", "symbol-dce", "inline", "sdy-propagation-pipeline", "strip-debuginfo"),
    *("symbol-privatize", "sccp", "topological-sort", "remove-dead-values", "func.func(cse)", "print-ir"),
)
SCHEDULE_FILE = "order.csv"
"""Schedule file in the folder of a case."""

_STRINGS = {
    "policy": ("program", "gpipe", "1f1b", "interleaved-1f1b", "eager", "zb-h1", "zb-v", "fastest"),
    "file": (SCHEDULE_FILE, SCHEDULE_FILE, SCHEDULE_FILE, "no/such.csv", "."),
    "islands": ("named", "all", "none"),
}
_INTEGERS = ("-1", "0", "1", "2", "8", "1000", "65536", "999999999999999999")


def random_pipeline(rng: random.Random, text: str, own: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the passes for a text, each with its options.

    Args:
      rng: the generator.
      text: the input of the passes; the form that it claims decides where the real pipeline starts.
      own: the pipelines that its file runs.
    """
    choice = rng.random()
    if choice < 0.08:
        passes: list[str] = []
    elif choice < 0.3:
        passes = _sequence(rng, text, 1)
    elif choice < 0.62:
        passes = _continued(rng, text)
    elif choice < 0.77 and own:
        return (rng.choice(own),)
    else:
        passes = _sequence(rng, text, rng.randint(2, 4))
    for _ in range(rng.choice([0, 0, 0, 0, 0, 1, 1, 2])):
        passes.insert(rng.randint(0, len(passes)), rng.choice(BUILTINS))
    return tuple(passes)


def full_pipeline(text: str) -> tuple[str, ...]:
    """Returns all passes that are left for a text, by the form that it claims."""
    behind = phases_after(Options(), _claim(text))
    return tuple(item_name(item) for phase in behind for item in phase.passes)


def _claim(text: str) -> str | None:
    """Returns the form that a text claims to be in; None if it claims none, or one that does not exist."""
    claim = syntax.FORM.search(text)
    return claim[1] if claim and claim[1] in FORMS else None


def _continued(rng: random.Random, text: str) -> list[str]:
    """Returns passes of the real pipeline, from the form of a text to a random one."""
    names = list(full_pipeline(text))
    if _claim(text) is None and "frontend_attributes" not in text:
        # A text that JAX did not write, and that claims no form, may be in any form.
        names = names[rng.randrange(len(names)) :]
    last = len(names) if rng.random() < 0.5 else rng.randint(1, max(1, len(names)))
    return [_with_options(rng, name) for name in names[:last]]


def _sequence(rng: random.Random, text: str, count: int) -> list[str]:
    """Returns random passes; most accept the output form of those before them."""
    form = _claim(text)
    passes = []
    for _ in range(count):
        fit = [name for name in registry.names() if form in _taken(name)]
        name = rng.choice(fit if fit and rng.random() < 0.85 else registry.names())
        leaves = registry.load(name).output_form
        form = form if leaves is None else leaves.name
        passes.append(_with_options(rng, name))
    return passes


def _taken(name: str) -> list[str]:
    return [form.name for form in registry.load(name).input_forms]


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
    """Returns the text of a schedule file: an order that a program may be able to follow, or nonsense."""
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
