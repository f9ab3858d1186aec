"""Docstrings of passes show the IR that their lit tests start from and produce."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from pathways.dialect import load_ifrt, make_context
from pathways.dialect.syntax.pretty import pretty
from pathways.passes.manager import registry
from pathways.passes.manager.driver import run_passes
from pathways.passes.manager.text import parse_pipeline

TESTS = Path(__file__).parents[1] / "passes"
SHOWN = re.compile(r"```mlir\n\s*// before\n(.*?)\n\s*// after\n(.*?)\n\s*```", re.DOTALL)
RUN = re.compile(r"""// RUN: .*? (?:-p (?:'([^']+)'|"([^"]+)"|(\S+))|--(pw-\S+))""")
PASSES = [name for name in registry.names() if "-verify-" not in name]


@pytest.mark.parametrize("name", PASSES)
def test_passes_do_what_they_show(name: str) -> None:
    example = SHOWN.search(registry.load(name).__doc__ or "")
    assert example, f"{name} shows no IR before and after"
    text = (TESTS / f"{registry.MODULES[name].replace('.', '/')}.mlir").read_text()
    pipeline = next(filter(None, RUN.search(text).groups()))
    with make_context() as context:
        load_ifrt(context)
        module = ir.Module.parse(text.partition("// -----")[0])
        before = pretty(str(module))
        run_passes(module, parse_pipeline(pipeline))
    for shown, printed in zip(example.groups(), (before, pretty(str(module))), strict=True):
        lines = iter(printed.splitlines())
        for line in map(str.strip, shown.splitlines()):
            start = re.escape(line.removesuffix(" ..."))
            assert any(re.match(rf"\s*{start}( |$)", each) for each in lines), f"{line} is not in\n{printed}"
