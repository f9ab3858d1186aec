"""Custom calls that untrusted computations may make, and words for the others."""

from __future__ import annotations

import pytest
from custom_calls_of_jax import lowered_to, registered

from pathways.runtime.bundle.custom_calls import BUNDLE_CALLS, CLIENT_CALLS, REFUSED_CALLS, refusal


def unreviewed(names: set[str]) -> set[str]:
    """Returns the calls that are in no list, under the prefix of any GPU."""
    listed = CLIENT_CALLS | REFUSED_CALLS.keys()
    return {name for name in names if not {name, name.replace("cu", "hip", 1)} & listed}


def test_each_call_that_jaxlib_registers_is_reviewed() -> None:
    names = registered()
    assert {"lapack_spotrf_ffi", "cpu_csr_sparse_dense_ffi"} <= names
    assert unreviewed(names) == set()


def test_each_call_that_jax_lowers_to_is_reviewed() -> None:
    names = lowered_to()
    assert {"LayoutConstraint", "cusolver_syrk_ffi", "xla_ffi_python_cpu_callback"} <= names
    assert unreviewed(names) == set()


def test_no_call_is_both_accepted_and_refused() -> None:
    assert not CLIENT_CALLS & REFUSED_CALLS.keys()
    assert BUNDLE_CALLS < CLIENT_CALLS


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (
            "CustomSPMDPartitioning",
            "calls 'CustomSPMDPartitioning' (custom_partitioning: its functions are Python of the program)",
        ),
        ("tpu_custom_call", "calls 'tpu_custom_call' (a kernel of Pallas or Triton is code of the program)"),
        (
            "their_code",
            "calls 'their_code', which is not a call of JAX itself: a foreign function (jax.ffi) is code",
        ),
        ("dce_sink", "calls 'dce_sink', which an untrusted bundle may not"),
    ],
)
def test_a_refusal_has_the_words_of_the_user(target: str, reason: str) -> None:
    assert refusal(target) == reason
