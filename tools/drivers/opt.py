"""Passes over the input of `pw-opt`, and its output."""

from __future__ import annotations

import argparse
import sys

from jaxlib.mlir import ir

from pathways.dialect import make_context
from pathways.dialect.syntax.bytecode import bytecode_of
from pathways.dialect.syntax.pretty import pretty
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.manager.text import Item, PipelineError, parse_pipeline
from pathways.tools.common.diagnostics import Expectations, Printer
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import check_extension, write_output
from pathways.tools.common.source import SEPARATOR, Source, parse, read_source
from pathways.tools.common.supervisor import doing
from pathways.tools.drivers import reproducer
from pathways.tools.drivers.instrumentation import DumpTree, Instrumentation
from pathways.tools.drivers.reports import Timing, pipeline_dump
from pathways.tools.drivers.roundtrip import check_round_trip


def run(options: argparse.Namespace) -> int:
    """Runs the tool for its flags; returns the exit code."""
    doing("reading the pipeline")
    items = _read_pipeline(options.pipeline, make_context())
    if options.input == "-" and sys.stdin.isatty():
        print("pw-opt: reading from standard input; Ctrl-D ends it", file=sys.stderr)
    source = read_source(options.input)
    if options.run_reproducer:
        source, pipeline, options.verify_each = reproducer.split(source)
        items = _read_pipeline([pipeline], make_context())
    if options.dump_pipeline:
        print(pipeline_dump(items), file=sys.stderr)
    timing = Timing()
    tree = None if options.tree_dir is None else DumpTree(options.tree_dir)
    outputs = [
        _process(piece, items, options, timing, tree)
        for piece in (source.chunks() if options.split_input_file else [source])
    ]
    printed = [output for output in outputs if output]
    complete = None not in outputs
    # A file is complete or unchanged; standard output gets the pieces without errors.
    if printed and (complete or options.output == "-"):
        check_extension("pw-opt", options.output, *_format(options))
        with timing.measure("Output"):
            write_output(options.output, f"{SEPARATOR}\n".encode().join(printed))
    if options.timing:
        print(timing.report(), file=sys.stderr)
    return 0 if complete else 1


def _process(
    source: Source, items: list[Item], options: argparse.Namespace, timing: Timing, tree: DumpTree | None
) -> bytes | None:
    """Returns the output for one piece of the input; None after errors, empty if they were expected."""
    context = make_context()
    printer = Printer(source)
    expectations = Expectations(source, printer) if options.verify_diagnostics else None
    hooks = Instrumentation(lambda module: _text(module, options), options, tree, timing)
    output: bytes | None = None
    with Diagnostics(context, expectations or printer):
        try:
            with timing.measure("Parser"):
                module = parse(source, context)
            if options.roundtrip:
                check_round_trip(module)
            with reproducer.writing_on_failure(options.reproducer, module, items, options.verify_each):
                run_passes(
                    module,
                    items,
                    verify_each=options.verify_each,
                    before_each=hooks.before_each,
                    after_each=hooks.after_each,
                )
            if options.irdl:
                _write_irdl(module, options.irdl)
            doing("printing the result")
            output = _output(module, options)
        except (ir.MLIRError, PassFailure):
            pass
    if expectations is not None:
        return (output or b"") if expectations.finish() else None
    return output


def _format(options: argparse.Namespace) -> tuple[str, ...]:
    """Returns the format of the output, and its usual suffixes."""
    if options.emit_schedule:
        return "a schedule", ".csv"
    return ("bytecode", ".mlirbc", ".bc") if options.emit_bytecode else ("MLIR text", ".mlir")


def _output(module: ir.Module, options: argparse.Namespace) -> bytes:
    if options.emit_schedule:
        from pathways.passes.schedule.order.schedule import schedule_of

        with module.context:
            return schedule_of(module).encode()
    return bytecode_of(module) if options.emit_bytecode else _text(module, options)


def _text(module: ir.Module, options: argparse.Namespace) -> bytes:
    text = module.operation.get_asm(
        binary=True,
        enable_debug_info=options.debuginfo,
        print_generic_op_form=options.generic or options.irdl is not None,
        large_elements_limit=options.elide,
    )
    if options.pretty:
        text = pretty(text.decode()).encode()
    return text.rstrip(b"\n") + b"\n"


def _write_irdl(module: ir.Module, path: str) -> None:
    from pathways.dialect.syntax.irdl import export

    doing("writing the dialect as IRDL")
    write_output(path, export(module).encode())


def _read_pipeline(texts: list[str], context: ir.Context) -> list[Item]:
    items: list[Item] = []
    for text in texts:
        try:
            items += parse_pipeline(text, context)
        except PipelineError as error:
            raise UserError(f"{error}\n{text}\n{' ' * (error.column - 1)}^") from None
    return items
