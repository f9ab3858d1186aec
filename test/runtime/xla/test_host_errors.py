"""Errors of hosts are errors of JAX, too, for code that catches those."""

from __future__ import annotations

import pickle

import jax
import pytest

import pathways as pw
from pathways.runtime.control.records import errors
from pathways.runtime.control.records.errors import Failure, failed, lost
from pathways.runtime.xla.host_errors import raise_as_errors_of_jax


@pytest.fixture
def of_jax(monkeypatch) -> None:
    monkeypatch.setattr(errors, "raised_as", {})
    raise_as_errors_of_jax()


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (lost("host 1 is lost"), "DATA_LOSS"),
        (Failure(pw.HostLeavingError, "host 1 leaves"), "UNAVAILABLE"),
        (Failure(pw.ServiceLostError, "service lab is disconnected"), "UNAVAILABLE"),
        (failed("host 1: out of memory"), "INTERNAL"),
    ],
)
def test_host_error_is_an_error_of_jax_with_a_status(of_jax, failure, status):
    with pytest.raises(failure.kind) as caught:
        raise failure.error("program f")
    error = caught.value
    assert isinstance(error, jax.errors.JaxRuntimeError)
    assert str(error) == f"{status}: program f: {failure.text}"
    assert type(error).__name__ == failure.kind.__name__
    # The record has neither class nor status, which are not added twice.
    assert error.record() == Failure(failure.kind, f"program f: {failure.text}")
    assert str(error.record().error()) == str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_host_error_of_another_kind_stays_as_it_is(of_jax):
    error = Failure(pw.ClusterClosedError, "host 1 is closed").error()
    assert (type(error), str(error)) == (pw.ClusterClosedError, "host 1 is closed")


def test_host_error_without_jax(monkeypatch):
    """A service, which sends the record of an error, does not load JAX."""
    monkeypatch.setattr(errors, "raised_as", {})
    error = lost("host 1 is lost").error()
    assert (type(error), str(error)) == (pw.HostLostError, "host 1 is lost")
