"""Every pass of the compiler by name, imported when it is first asked for."""

from __future__ import annotations

import importlib

from pathways.passes.base import Pass

MODULES = {
    "pw-import": "import_",
    "pw-infer-placement": "infer_placement",
    "pw-sink-loop-reductions": "sink_loop_reductions",
    "pw-outline": "outline",
    "pw-cse": "cse",
    "pw-dce": "dce",
    "pw-insert-transfers": "insert_transfers",
    "pw-propagate-shardings": "propagate_shardings",
    "pw-lower-transfers": "lower_transfers",
    "pw-unroll-microbatches": "unroll_microbatches",
    "pw-schedule": "schedule",
    "pw-accumulate": "accumulate",
    "pw-fuse-launches": "fuse_launches",
    "pw-plan-memory": "plan_memory",
    "pw-verify-placed": "verify_placed",
    "pw-verify-schedule": "verify_schedule",
}
"""The module of `pathways.passes` that holds each pass, in the order in which a program meets them."""


def names() -> list[str]:
    """The names of all passes, in the order in which a program meets them."""
    return list(MODULES)


def load(name: str) -> type[Pass]:
    """The pass of that name.

    Raises:
      KeyError: when there is none.
    """
    module = importlib.import_module(f"pathways.passes.{MODULES[name]}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Pass) and getattr(value, "name", None) == name:
            return value
    raise ImportError(f"{module.__name__} declares no pass named {name}")
