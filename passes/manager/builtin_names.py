"""Names of MLIR's and Shardy's own passes, which their bindings do not list, for help and spelling hints."""

_NAMES = """
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

BUILTIN_PASSES = tuple(_NAMES.split())

REFUSED = {
    "sdy-resolve-permutation-factors": "it crashes on operations that have no sharding rule",
    "sdy-convert-global-to-local": "it aborts the process on ordinary programs; XLA partitions instead",
}
"""Passes that bring the process down, with the reason."""
