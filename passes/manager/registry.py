"""Registry of the passes of the compiler by name; each is imported at its first use.

The descriptions of passes in listings are in `summaries.json` beside this module, which `make docs` writes
from their docstrings: importing all passes takes longer than all else that a tool does to start.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathways.passes.manager.base import Pass

MODULES = {
    "pw-import": "import_.import_",
    "pw-import-mpmd": "import_.mpmd.import_mpmd",
    "pw-import-ifrt": "import_.mpmd.import_ifrt",
    "pw-infer-placement": "place.inference.infer_placement",
    "pw-insert-all-reduces": "place.insert_all_reduces",
    "pw-sink-loop-reductions": "place.sink_loop_reductions",
    "pw-group-branches": "place.group_branches",
    "pw-outline": "place.outline",
    "pw-cse": "place.cse",
    "pw-merge-residuals": "place.merge_residuals",
    "pw-sink-constants": "place.sink_constants",
    "pw-dce": "place.dce",
    "pw-insert-transfers": "place.insert_transfers",
    "pw-split-backward": "shard.halves.split_backward",
    "pw-propagate-shardings": "shard.propagate_shardings",
    "pw-lower-transfers": "shard.lower_transfers",
    "pw-split-updates": "shard.updates.split_updates",
    "pw-split-chunks": "schedule.chunks.split_chunks",
    "pw-sum-carries": "schedule.replicas.sum_carries",
    "pw-replicate": "schedule.replicas.replicate",
    "pw-lower-all-reduces": "schedule.replicas.lower_all_reduces",
    "pw-unroll-microbatches": "schedule.unroll.unroll_microbatches",
    "pw-schedule": "schedule.order.schedule",
    "pw-lower-all-to-alls": "schedule.order.lower_all_to_alls",
    "pw-accumulate": "schedule.fuse.accumulate",
    "pw-fuse-launches": "schedule.fuse.fuse_launches",
    "pw-share-loops": "schedule.fuse.share_loops",
    "pw-assign-memory-kinds": "schedule.memory.assign_memory_kinds",
    "pw-plan-memory": "schedule.memory.plan_memory",
    "pw-bind-slices": "bind.bind_slices",
    "pw-split-hosts": "bind.split_hosts",
    "pw-verify-placed": "place.verify_placed",
    "pw-verify-sharded": "shard.verify_sharded",
    "pw-verify-schedule": "schedule.verify_schedule",
}
"""The module of `pathways.passes` that holds each pass, in the order in which a program meets them."""

_BUILTIN = """
    canonicalize cse symbol-dce sccp inline trivial-dce remove-dead-values mem2reg sroa
    control-flow-sink loop-invariant-code-motion loop-invariant-subset-hoisting topological-sort
    composite-fixed-point-pass symbol-privatize strip-debuginfo snapshot-op-locations print-ir
    print-op-stats view-op-graph
    sdy-add-data-flow-edges sdy-add-func-data-flow-edges sdy-aggressive-propagate
    sdy-apply-sharding-constraints sdy-basic-propagate sdy-close-shardings
    sdy-constant-or-scalar-merger sdy-constant-or-scalar-splitter sdy-drop-sharding-and-mesh
    sdy-drop-sharding-rules sdy-explicit-gather-scatter-batching sdy-export-named-computations
    sdy-export-pipeline sdy-flatten-call-graph sdy-import-func-calls sdy-import-pipeline
    sdy-inline-meshes sdy-insert-explicit-reshards sdy-insert-func-call-reshards
    sdy-lift-inlined-meshes sdy-manual-axes-cleanup sdy-op-priority-propagate
    sdy-optimize-collectives sdy-pad-for-divisibility sdy-per-instruction-partitioning
    sdy-populate-op-sharding-rules sdy-pre-order-funcs sdy-propagate-sharding-from-func-to-call
    sdy-propagate-to-func-results sdy-propagation-pipeline sdy-remove-propagation-debug-info
    sdy-remove-sharding-groups sdy-remove-size-one-axes
    sdy-remove-sub-axes-in-input-output-shardings sdy-reshard-to-collectives
    sdy-resolve-single-device-sharding sdy-sharding-constraint-to-reshard
    sdy-sharding-group-import sdy-sink-data-flow-edges sdy-sink-func-data-flow-edges
    sdy-unflatten-call-graph sdy-update-non-divisible-input-output-shardings
    sdy-user-priority-propagate sdy-verify-unreduced-axes
"""

BUILTIN_PASSES = tuple(_BUILTIN.split())
"""Names of MLIR's and Shardy's own passes, which their bindings do not list, for help and spelling hints."""

REFUSED = {
    "sdy-resolve-permutation-factors": "it crashes on operations that have no sharding rule",
    "sdy-convert-global-to-local": "it aborts the process on ordinary programs; XLA partitions instead",
}
"""Names of builtin passes that bring the process down, with the reason."""


PLUGINS: dict[str, type[Pass]] = {}
"""Passes from outside of the package, by name, in the order in which they were loaded."""


def names() -> list[str]:
    """Returns the names of all passes, in the order in which a program meets them, plugins last."""
    return [*MODULES, *PLUGINS]


def is_pass(name: str) -> bool:
    """Returns whether a pass has that name: one of ours, a plugin, or one of MLIR and Shardy."""
    return name in MODULES or name in PLUGINS or name in BUILTIN_PASSES


@dataclasses.dataclass(frozen=True)
class Summary:
    """Description of a pass in listings.

    Attributes:
      does: the first paragraph of its docstring, in one line.
      options: its options as one writes them, each with its default and its help.
    """

    does: str
    options: Mapping[str, tuple[str, str]]


SUMMARIES = Path(__file__).with_name("summaries.json")
_UNDESCRIBED = Summary("no description yet: `make docs` writes it", {})
"""Description of a pass that was registered since `make docs` ran."""


def summaries() -> dict[str, Summary]:
    """Returns the description of each pass in listings, in the order in which a program meets them."""
    read = json.loads(SUMMARIES.read_text(encoding="utf-8"))
    ours = {name: Summary(**read[name]) if name in read else _UNDESCRIBED for name in MODULES}
    return ours | {name: summary_of(kind) for name, kind in PLUGINS.items()}


def summary_of(kind: type[Pass]) -> Summary:
    """Returns the description of a pass, from its docstring and its options."""
    does = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    options = {
        field.name.replace("_", "-"): (default_of(field), field.metadata.get("help", ""))
        for field in dataclasses.fields(kind)
    }
    return Summary(does, options)


def default_of(field: dataclasses.Field[Any]) -> str:
    """Returns the default of an option, as a pipeline has it."""
    return str(field.default).lower() if isinstance(field.default, bool) else str(field.default)


def load(name: str) -> type[Pass]:
    """Returns the pass of that name.

    Raises:
      KeyError: when there is none.
    """
    if name in PLUGINS:
        return PLUGINS[name]
    module = importlib.import_module(f"pathways.passes.{MODULES[name]}")
    for value in vars(module).values():
        if isinstance(value, type) and getattr(value, "name", None) == name:
            return value
    raise ImportError(f"{module.__name__} declares no pass named {name}")
