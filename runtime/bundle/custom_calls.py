"""Custom calls of JAX that untrusted computations may make, and the refused ones, with the reason.

The lists are reviewed for each supported release of JAX: a test fails for a call that jaxlib registers or
that JAX lowers to, and that no list has. An accepted call runs no code of the program and reads no pointer of
it. The sizes of its operands are checked by its kernel, by XLA, or by `problem_of_call`.
"""

from __future__ import annotations

import itertools

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from pathways.dialect.operations.operation import nested_ops

_LAPACK = ("potrf", "geqrf", "geev", "gees", "gehrd", "geqp3", "gesdd", "gesvd", "getrf", "gtsv", "trsm")
_LAPACK_REAL = ("orgqr", "ormqr", "syevd", "sytrd")
_LAPACK_COMPLEX = ("ungqr", "unmqr", "heevd", "hetrd")
_SOLVER = (
    "getrf",
    "geqrf",
    "orgqr",
    "ormqr",
    "potrf",
    "geev",
    "syevd",
    "gesvd",
    "gesvdj",
    "gesvdp",
    "sytrd",
    "syrk",
)

_IDENTITIES = (
    "LayoutConstraint",
    "Sharding",
    "annotate_device_placement",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.PropagationBarrier",
)
"""Custom calls that mark a value: one operand, one result, one type. XLA assumes that without a check."""

BUNDLE_CALLS = frozenset(
    [f"lapack_{kind}{routine}_ffi" for kind, routine in itertools.product("sdcz", _LAPACK)]
    + [f"lapack_{kind}{routine}_ffi" for kind, routine in itertools.product("sd", _LAPACK_REAL)]
    + [f"lapack_{kind}{routine}_ffi" for kind, routine in itertools.product("cz", _LAPACK_COMPLEX)]
    + [f"{vendor}solver_{routine}_ffi" for vendor, routine in itertools.product(("cu", "hip"), _SOLVER)]
    + ["tridiagonal_solve_perturbed_ffi", "hipsolver_gesdd_ffi", "cusparse_gtsv2_ffi"]
    + ["cu_threefry2x32_ffi", "hip_threefry2x32_ffi"]
    + ["cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation"]
    # Linear algebra and selection on TPU.
    + ["Eigh", "Qr", "ProductOfElementaryHouseholderReflectors", "LuDecomposition", "ApproxTopK"]
    # Markers that XLA itself removes: shardings, layouts, and the bounds of manual computations.
    + [*_IDENTITIES, "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.ShardingGroup"]
    + ["xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"]
    + ["local_xla.sdy.GlobalToLocalShape", "local_xla.sdy.LocalToGlobalShape"]
)
"""The custom calls that untrusted bundles may make: `jax.numpy` and `jax.lax` lower to them."""

_SPARSE = "cpu_csr_sparse_dense_ffi"
_RAGGED = "ragged_all_to_all"
_ATTENTION = ("Softmax", "ScaleBiasSoftmax", "SoftmaxDropout", "ScaleBiasSoftmaxDropout")

CLIENT_CALLS = BUNDLE_CALLS | frozenset(
    # `jax.experimental.sparse` on CPUs: the server bounds the indices, which the kernel does not check.
    [_SPARSE]
    # Moves rows to offsets that are values, which nothing checks.
    + [_RAGGED]
    # Uninitialised memory of a GPU, which may hold values of programs that ended.
    + ["AllocateBuffer"]
    # Consumes a value, so that XLA does not remove its computation.
    + ["dce_sink"]
    # Linear algebra on GPUs that checks its operands. Some of it searches for the library MAGMA.
    + ["cu_cholesky_update_ffi", "cu_tridiagonal_solve_perturbed", "cusolver_csrlsvqr_ffi"]
    + ["cuhybrid_eig_comp", "cuhybrid_eig_real", "cuhybrid_geqp3"]
    # Operations of XLA itself on GPUs, with parameters as JSON.
    + ["__op$block_scaled_dot", "__cudnn$fusion", "__cudnn$fmhaSoftmaxF8", "__cudnn$fmhaSoftmaxBackwardF8"]
    + [f"__cudnn$fmha{kind}{suffix}" for kind, suffix in itertools.product(_ATTENTION, ("", "Backward"))]
)
"""The custom calls that programs of clients may make. A bundle that has one of the additions needs trust."""

_CALLBACK = "a callback is Python of the program, which only its own process can call"
_KERNEL = "a kernel of Pallas or Triton is code of the program"
_DESCRIPTOR = "its kernel takes the sizes of arrays from a descriptor without a check"
_SHAPES = "jax.export resolves it when a function of symbolic shapes is called"
_BUFFER = "pinned buffers are private to JAX and run on no platform of the server"

REFUSED_CALLS = {
    "CustomSPMDPartitioning": "custom_partitioning: its functions are Python of the program",
    "InspectSharding": "jax.debug.inspect_array_sharding and visualize_array_sharding under jit: their "
    "callback is Python of the program",
    **dict.fromkeys(
        ["xla_python_cpu_callback", "xla_python_gpu_callback"]
        + [
            f"xla_{kind}_python_{d}_callback"
            for kind in ("ffi", "ffi_partitioned", "buffer")
            for d in ("cpu", "gpu")
        ],
        _CALLBACK,
    ),
    **dict.fromkeys(
        [
            "tpu_custom_call",
            "mosaic_gpu_v2",
            "triton_kernel_call",
            "triton_kernel_call_ffi",
            "__gpu$xla.gpu.triton",
        ],
        _KERNEL,
    ),
    "thunky.inline_module": "jax.experimental.thunky: a module of thunks is code of the program",
    "tf.call_tf_function": "jax2tf.call_tf: the function is TensorFlow of the program",
    **dict.fromkeys(
        [
            f"cusparse_{form}_{verb}_ffi"
            for form, verb in itertools.product(("coo", "csr"), ("fromdense", "matmat", "matvec", "todense"))
        ],
        f"jax.experimental.sparse by cuSPARSE: {_DESCRIPTOR}",
    ),
    **dict.fromkeys(["cudnn_rnn_ffi", "cudnn_rnn_bwd_ffi"], f"jax.experimental.rnn by cuDNN: {_DESCRIPTOR}"),
    "fused": "jax.experimental.fused runs on no platform of the server",
    "control_dep": "jax.experimental.overlap and control_deps run on no platform of the server",
    **dict.fromkeys(
        [f"{name}-start" for name in ("all-gather", "all-reduce", "all-to-all", "reduce-scatter")]
        + ["collective-permute-start"],
        "asynchronous collectives are private to JAX and run on no platform of the server",
    ),
    **dict.fromkeys(["CreateBuffer", "Pin", "Unpin"], _BUFFER),
    **dict.fromkeys(
        ["shape_assertion"]
        + [
            f"stablehlo.dynamic_{name}"
            for name in ("approx_top_k", "reduce_window", "rng_bit_generator", "top_k")
        ],
        _SHAPES,
    ),
}
"""Custom calls of JAX that no untrusted computation may make, each with the reason."""


def refusal(target: str) -> str:
    """Returns why a custom call is refused, as the end of a sentence about the program that makes it."""
    if target in REFUSED_CALLS:
        return f"calls {target!r} ({REFUSED_CALLS[target]})"
    if target in CLIENT_CALLS:
        return f"calls {target!r}, which an untrusted bundle may not"
    return f"calls {target[:100]!r}, which is not a call of JAX itself: a foreign function (jax.ffi) is code"


def refused_in(text: bytes) -> str | None:
    """Returns the first refused call that the text of a module makes, though the text is not UTF-8."""
    return next((name for name in REFUSED_CALLS if b"custom_call @" + name.encode() + b"(" in text), None)


def problem_of_call(op: ir.Operation) -> str | None:
    """Returns the problem of operands and attributes of an accepted call, which XLA does not check."""
    target = op.attributes["call_target_name"].value
    operands, results = ([value.type for value in values] for values in (op.operands, op.results))
    if target in _IDENTITIES and (len(operands) != 1 or operands != results):
        return f"calls {target!r} on anything but one value"
    if target == "AllocateBuffer" and (operands or len(results) != 1):
        return f"calls {target!r} with operands or without one result"
    if (target == _RAGGED and not _is_ragged(op, operands, results)) or (
        target == _SPARSE and not _is_sparse(operands, results)
    ):
        return f"calls {target!r} with operands or attributes of other types than JAX"
    return None


def _is_ragged(op: ir.Operation, operands: list[ir.Type], results: list[ir.Type]) -> bool:
    config = op.attributes.get("backend_config")
    if not isinstance(config, ir.DictAttr) or len(operands) != 6 or results != operands[1:2]:
        return False
    if not all(isinstance(type_, ir.RankedTensorType) and type_.rank for type_ in operands):
        return False
    data, into, *sizes = operands
    same = [(type_.element_type, *type_.shape[1:]) for type_ in (data, into)]
    attributes = {named.name: named.attr for named in config}
    return (
        same[0] == same[1]
        and all(type_ == sizes[0] and isinstance(type_.element_type, ir.IntegerType) for type_ in sizes)
        and isinstance(attributes.get("replica_groups"), ir.DenseIntElementsAttr)
        and isinstance(attributes.get("channel_id"), ir.IntegerAttr)
    )


def _is_sparse(operands: list[ir.Type], results: list[ir.Type]) -> bool:
    """Returns whether operands are the elements, row starts and columns of a matrix and a dense array."""
    types = [*operands, *results]
    if len(operands) != 4 or len(results) != 1:
        return False
    if not all(isinstance(type_, ir.RankedTensorType) and type_.has_static_shape for type_ in types):
        return False
    elements, starts, columns, dense, product = types
    return (
        elements.rank == starts.rank == columns.rank == 1
        and dense.rank == product.rank in (1, 2)
        and columns.shape == elements.shape
        and starts.shape == [product.shape[0] + 1]
        and dense.shape[1:] == product.shape[1:]
        and elements.element_type == dense.element_type == product.element_type
        and starts.element_type == columns.element_type
        and isinstance(starts.element_type, ir.IntegerType)
    )


def bound_sparse_indices(module: ir.Module) -> None:
    """Clamps the row starts and columns of sparse matrices in a module, so that valid ones keep their values.

    The kernel of `jax.experimental.sparse` on CPUs reads memory at any of them. `problem_of_call` has checked
    the types of the operands.
    """
    calls = [
        op.operation
        for op in nested_ops(module.operation.opview)
        if op.operation.name == "stablehlo.custom_call" and op.attributes["call_target_name"].value == _SPARSE
    ]
    for call in calls:
        elements, _, _, dense = call.operands
        (count,), columns = elements.type.shape, dense.type.shape[0]
        with call.context, call.location, ir.InsertionPoint(call):
            # Without columns, no element may be read.
            for number, high in ((1, count if columns else 0), (2, max(columns - 1, 0))):
                index = call.operands[number]
                low, most = (_constant(bound, index.type.element_type) for bound in (0, high))
                call.operands[number] = stablehlo.ClampOp(low, index, most).result


def _constant(value: int, type_: ir.IntegerType) -> ir.Value:
    attribute = ir.DenseElementsAttr.get_splat(
        ir.RankedTensorType.get([], type_), ir.IntegerAttr.get(type_, value)
    )
    return stablehlo.ConstantOp(attribute).result
