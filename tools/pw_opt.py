"""`pw-opt` runs passes over MLIR, as `mlir-opt` does, with the passes and the dialect of this compiler."""

from __future__ import annotations

import argparse
import importlib
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pathways.tools import supervisor
from pathways.tools.files import UserError, read_input, write_output

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from pathways.passes.text import Item
    from pathways.tools.reports import Timing
    from pathways.tools.source import Source

_DESCRIPTION = """\
Runs passes over a module of MLIR text or bytecode and prints the result. Passes are given as flags in
order (--pw-dce --cse), as a list (-p pw-schedule{policy=program},cse) or as a pipeline in MLIR's syntax
(--pass-pipeline='builtin.module(pw-dce,cse)').
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns its exit code: 0, 1 for any error, 130 when interrupted.

    Args:
      arguments: those of the command line when left out, in a process that can report a crash of MLIR;
        otherwise the tool runs in this process.
    """
    if arguments is None:
        return supervisor.supervise("pw-opt", lambda: _guarded(sys.argv[1:]))
    return _guarded(arguments)


def _guarded(arguments: Sequence[str]) -> int:
    return supervisor.in_one_line("pw-opt", lambda: _main(arguments))


def _main(arguments: Sequence[str]) -> int:
    _defer_numpy()
    options = _Parser().parse(arguments)
    report = _report(options)
    if report is not None:
        write_output("-", report.encode())
        return 0

    from pathways.dialect import make_context
    from pathways.tools.reports import Timing
    from pathways.tools.source import SEPARATOR, Source

    supervisor.doing("reading the pipeline")
    items = _read_pipeline(options.pipeline, make_context())
    if options.input == "-" and sys.stdin.isatty():
        print("pw-opt: reading from standard input; Ctrl-D ends it", file=sys.stderr)
    name = "<stdin>" if options.input == "-" else options.input
    source = Source(name, read_input(options.input))
    timing = Timing()
    outputs = [
        _process(piece, items, options, timing)
        for piece in (source.chunks() if options.split_input_file else [source])
    ]
    printed = [output for output in outputs if output]
    complete = None not in outputs
    if printed and (complete or options.output == "-"):
        with timing.measure("Output"):
            write_output(options.output, f"{SEPARATOR}\n".encode().join(printed))
    if options.timing:
        print(timing.report(), file=sys.stderr)
    return 0 if complete else 1


def _process(source: Source, items: list[Item], options: argparse.Namespace, timing: Timing) -> bytes | None:
    """The output for one piece of the input; None after errors, empty when they were the expected ones."""
    from jaxlib.mlir import ir

    from pathways.dialect import make_context
    from pathways.passes.base import PassFailure
    from pathways.passes.driver import Diagnostics, run_passes
    from pathways.tools.diagnostics import Expectations, Printer
    from pathways.tools.reports import Instrumentation
    from pathways.tools.source import parse

    context = make_context()
    printer = Printer(source)
    expectations = Expectations(source, printer) if options.verify_diagnostics else None
    hooks = Instrumentation(
        lambda module: _text(module, options),
        options.print_before,
        options.print_after,
        options.print_change,
        timing,
    )
    output: bytes | None = None
    with Diagnostics(context, expectations or printer):
        try:
            with timing.measure("Parser"):
                module = parse(source, context)
            run_passes(
                module,
                items,
                verify_each=options.verify_each,
                before_each=hooks.before_each,
                after_each=hooks.after_each,
            )
            if options.irdl:
                _write_irdl(module, options.irdl)
            supervisor.doing("printing the result")
            output = _output(module, options)
        except (ir.MLIRError, PassFailure):
            pass
    if expectations is not None:
        return (output or b"") if expectations.finish() else None
    return output


def _output(module: ir.Module, options: argparse.Namespace) -> bytes:
    if options.emit_schedule:
        from pathways.passes.schedule.schedule import schedule_of

        with module.context:
            return schedule_of(module).encode()
    return _bytecode(module) if options.emit_bytecode else _text(module, options)


def _text(module: ir.Module, options: argparse.Namespace) -> bytes:
    text = module.operation.get_asm(
        binary=True,
        enable_debug_info=options.debuginfo,
        print_generic_op_form=options.generic or options.irdl is not None,
        large_elements_limit=options.elide,
    )
    return text.rstrip(b"\n") + b"\n"


def _write_irdl(module: ir.Module, path: str) -> None:
    from pathways.dialect.irdl import export

    supervisor.doing("writing the dialect as IRDL")
    write_output(path, export(module).encode())


def _bytecode(module: ir.Module) -> bytes:
    import io

    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _read_pipeline(texts: list[str], context: ir.Context) -> list[Item]:
    from pathways.passes.text import PipelineError, parse_pipeline

    items: list[Item] = []
    for text in texts:
        try:
            items += parse_pipeline(text, context)
        except PipelineError as error:
            raise UserError(f"{error}\n{text}\n{' ' * (error.column - 1)}^") from None
    return items


def _report(options: argparse.Namespace) -> str | None:
    """The text that a flag asks for instead of running passes."""
    if options.version:
        from importlib.metadata import PackageNotFoundError, version

        def version_of(package: str) -> str:
            try:
                return version(package)
            except PackageNotFoundError:
                return "not installed"

        return f"pw-opt {version_of('pathways-mlir')} (jaxlib {version_of('jaxlib')})\n"
    if not (options.help or options.list_passes or options.show_dialects):
        return None
    from pathways.tools import reports

    if options.help:
        return f"{_Parser().format_help()}\n{reports.passes_help()}"
    return reports.list_passes() if options.list_passes else reports.dialects_help()


class _Deferred(types.ModuleType):
    """A module that is imported when somebody first asks it for something.

    `importlib.util.LazyLoader` would not do: a second import statement wakes its modules up.
    """

    def __getattr__(self, name: str) -> Any:
        sys.modules.pop(self.__name__, None)
        real = importlib.import_module(self.__name__)
        self.__dict__.update(real.__dict__)
        return getattr(real, name)


def _defer_numpy() -> None:
    """Keeps MLIR's bindings, which import numpy but seldom use it, from doubling the start-up time."""
    sys.modules.setdefault("numpy", _Deferred("numpy"))


class _Parser(argparse.ArgumentParser):
    def __init__(self) -> None:
        super().__init__(
            "pw-opt",
            usage="pw-opt [FILE] [-o FILE] [passes] [flags]",
            description=_DESCRIPTION,
            allow_abbrev=False,
            add_help=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.flags: list[str] = []
        self.add_argument("input", nargs="?", default="-", metavar="FILE", help="default: standard input")
        self.flag("-o", dest="output", default="-", metavar="FILE", help="default: standard output")
        self.flag("-p", "--pass-pipeline", dest="pipeline", action="append", default=[], metavar="PASSES")
        self.switch("--split-input-file", help="treat the pieces between lines // ----- as inputs")
        self.switch("--verify-diagnostics", help="check diagnostics against expected-error comments")
        self.flag("--verify-each", type=_bool, default=True, metavar="0|1", help="verify after every pass")
        self.switch("--mlir-print-ir-before-all", dest="print_before", help="print the IR before each pass")
        self.switch("--mlir-print-ir-after-all", dest="print_after", help="print the IR after each pass")
        self.switch("--mlir-print-ir-after-change", dest="print_change", help="... if the pass changed it")
        self.switch("--mlir-print-op-generic", dest="generic", help="print the generic form of all ops")
        self.switch("--mlir-print-debuginfo", dest="debuginfo", help="print locations")
        self.flag(
            "--mlir-elide-elementsattrs-if-larger",
            dest="elide",
            type=_count,
            metavar="N",
            help="print no elements attributes of more than N elements",
        )
        self.switch("--mlir-timing", dest="timing", help="report the time of each pass")
        self.switch("--emit-bytecode", help="write bytecode")
        self.switch(
            "--emit-schedule",
            help="write the order of the program's loop, as a file for pw-schedule, in place of the module; "
            "for a program that comes from pw-schedule: pw-fuse-launches merges actions",
        )
        self.flag(
            "--emit-irdl",
            dest="irdl",
            metavar="FILE",
            help="write the pw dialect to FILE, for mlir-opt --irdl-file=FILE --allow-unregistered-dialect, "
            "and the result in the generic form that this reads; IRDL knows required attributes, their kinds "
            "and numbers of values, not symbols, optional attributes or rules between operations",
        )
        self.switch("--list-passes", help="list all passes")
        self.switch("--show-dialects", help="list the operations of the pw dialect")
        self.switch("--version", help="print the version")
        self.switch("-h", "--help", help="print this and every pass with its options")

    def flag(self, *names: str, **kwargs: Any) -> None:
        self.flags += names
        self.add_argument(*names, **kwargs)

    def switch(self, *names: str, **kwargs: Any) -> None:
        self.flag(*names, action="store_true", **kwargs)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses arguments; a flag that is not ours is a pass, kept in order with the pipelines."""
        rest: list[str] = []
        for number, argument in enumerate(arguments):
            if argument == "--":
                rest += arguments[number:]
                break
            if len(argument) > 2 and argument[0] == "-" and argument[1] != "-":
                argument = f"-{argument}"  # MLIR's drivers take one dash or two.
            flag, _, value = argument.partition("=")
            if flag.startswith("--") and flag not in self.flags:
                self.check_flag(flag)
                argument = f"--pass-pipeline={flag[2:]}" + (f"{{{value}}}" if value else "")
            rest.append(argument)
        options = self.parse_args(rest)
        self.check_irdl(options)
        return options

    def check_irdl(self, options: argparse.Namespace) -> None:
        """Fails when the IRDL file or the text that goes with it has no place."""
        if options.irdl is None:
            return
        for flag in ("split_input_file", "verify_diagnostics", "emit_bytecode", "emit_schedule"):
            if getattr(options, flag):
                self.error(f"--emit-irdl does not go with --{flag.replace('_', '-')}")
        if options.irdl == options.output:
            self.error(f"--emit-irdl and -o both write to '{options.output}'")

    def check_flag(self, flag: str) -> None:
        """Fails when a flag is nearer to one of the driver's own than to any pass."""
        import difflib

        from pathways.passes.builtin_names import BUILTIN_PASSES
        from pathways.passes.registry import MODULES

        if flag[2:] in MODULES or flag[2:] in BUILTIN_PASSES or flag.startswith("--sdy-"):
            return
        passes = [f"--{name}" for name in (*MODULES, *BUILTIN_PASSES)]
        near = difflib.get_close_matches(flag, [*self.flags, *passes], n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        self.error(f"unknown flag '{flag}'{hint}")

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def _bool(text: str) -> bool:
    choices = {"1": True, "true": True, "0": False, "false": False}
    if text.lower() not in choices:
        raise argparse.ArgumentTypeError(f"must be 0 or 1, got '{text}'")
    return choices[text.lower()]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise argparse.ArgumentTypeError(f"must be a number of elements, got '{text}'")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
