"""Interrupts of a compilation stay KeyboardInterrupt, although MLIR's bindings replace callbacks' errors."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pytest
from jaxlib.mlir import ir

import pathways as pw
from pathways.dialect import make_context
from pathways.passes.manager.driver import Diagnostics

X = np.ones(2, np.float32)

INTERRUPTS = [KeyboardInterrupt, SystemExit, MemoryError]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize(
    "function",
    [
        "pathways.dialect.operations.metadata.CallMetadata.read",
        "pathways.dialect.referenced_symbols",
        "pathways.passes.import_.make_launches.nested_ops",
    ],
)
def test_interrupt_of_a_compilation(
    monkeypatch: pytest.MonkeyPatch, function: str, interrupt: type[BaseException]
) -> None:
    increment = pw.jit(lambda x: x + 1, devices=pw.make_virtual_device_set().add_slice(1, "x"))

    def interrupted(*_: Any) -> NoReturn:
        raise interrupt("here")

    with monkeypatch.context() as patch:
        patch.setattr(function, interrupted)
        with pytest.raises(interrupt, match="here"):
            increment(X)
    assert increment(X).tolist() == [2, 2], "later calls compile it"


@pytest.mark.parametrize("interrupt", INTERRUPTS)
def test_interrupt_of_a_diagnostic(capfd: pytest.CaptureFixture[str], interrupt: type[BaseException]) -> None:
    def interrupted(_: object) -> NoReturn:
        raise interrupt("here")

    context = make_context()
    with pytest.raises(interrupt, match="here"), Diagnostics(context, on_emit=interrupted):
        ir.Module.parse("no module", context)
    assert capfd.readouterr().err == ""
