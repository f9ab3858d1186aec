"""`pw-opt` runs passes over MLIR, as `mlir-opt` does, with the passes and the dialect of this compiler."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any

from pathways.tools.common import command
from pathways.tools.common.deferred_numpy import defer_numpy
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import write_output
from pathways.tools.common.flags import FlagParser, count

_USAGE = "pw-opt [FILE] [-o FILE] [passes] [flags]"

_DESCRIPTION = """\
Runs passes over a module of MLIR text or bytecode and prints the result. Passes are given as flags in
order (--pw-dce --cse), as a list (-p pw-schedule{policy=program},cse) or as a pipeline in MLIR's syntax
(--pass-pipeline='builtin.module(pw-dce,cse)').
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    # Before flags are read: the parser looks up flags that are passes among all passes.
    defer_numpy()
    try:
        return command.run(make_parser(), _run, arguments)
    finally:
        if arguments is not None:
            # The process of the caller continues, without the plugins of this call.
            from pathways.passes.manager.registry import PLUGINS

            PLUGINS.clear()


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    return _OptParser()


def _run(options: argparse.Namespace) -> int:
    if options.list_passes or options.show_dialects:
        from pathways.tools.drivers.listings import dialects_help, list_passes

        write_output("-", (list_passes() if options.list_passes else dialects_help()).encode())
        return 0
    from pathways.tools.drivers import opt as driver

    return driver.run(options)


def _passes_help() -> str:
    from pathways.tools.drivers.listings import passes_help

    return passes_help()


class _OptParser(FlagParser):
    """The flags of `pw-opt`; every other one is a pass, kept in order with the pipelines."""

    def __init__(self) -> None:
        super().__init__("pw-opt", _USAGE, _DESCRIPTION, _passes_help, library="jaxlib")
        add, switch = self.add_argument, functools.partial(self.add_argument, action="store_true")
        add("input", nargs="?", default="-", metavar="FILE", help="default: standard input")
        add("-o", dest="output", default="-", metavar="FILE", help="default: standard output")
        add("-p", "--pass-pipeline", dest="pipeline", action="append", default=[], metavar="PASSES")
        switch("--split-input-file", help="treat the pieces between lines // ----- as inputs")
        switch("--verify-diagnostics", help="check diagnostics against expected-error comments")
        add(
            "--load-pass-plugin",
            dest="plugins",
            action="append",
            default=[],
            metavar="CLASS",
            help="load a pass of your own: path/file.py:Class or package.module:Class; may be repeated",
        )
        add("--verify-each", type=_bool, default=True, metavar="0|1", help="verify after every pass")
        switch("--mlir-print-ir-before-all", dest="print_before", help="print the IR before each pass")
        switch("--mlir-print-ir-after-all", dest="print_after", help="print the IR after each pass")
        add("--mlir-print-ir-before", type=_passes, action="extend", default=[], metavar="PASS[,PASS]")
        add("--mlir-print-ir-after", type=_passes, action="extend", default=[], metavar="PASS[,PASS]")
        switch("--mlir-print-ir-after-change", dest="print_change", help="... if the pass changed it")
        add(
            "--mlir-print-ir-tree-dir",
            dest="tree_dir",
            metavar="DIR",
            help="print the IR into files below DIR; goes with the flags --mlir-print-ir-*",
        )
        switch("--mlir-print-op-generic", dest="generic", help="print the generic form of all ops")
        switch("--pretty", help="print pw operations in readable syntax, which cannot be parsed back")
        switch("--mlir-print-debuginfo", dest="debuginfo", help="print locations")
        add(
            "--mlir-elide-elementsattrs-if-larger",
            dest="elide",
            type=count,
            metavar="N",
            help="print no elements attributes of more than N elements",
        )
        switch("--mlir-timing", dest="timing", help="report the time of each pass")
        switch("--dump-pass-pipeline", dest="dump_pipeline", help="print the pipeline that will be run")
        switch(
            "--verify-roundtrip",
            dest="roundtrip",
            help="check that the input round-trips through its printed forms",
        )
        add(
            "--mlir-pass-pipeline-crash-reproducer",
            dest="reproducer",
            metavar="FILE",
            help="write the input and the pipeline to FILE if a pass fails or crashes",
        )
        switch("--run-reproducer", help="run the pipeline that is stored in the input")
        switch("--emit-bytecode", help="write bytecode")
        switch(
            "--emit-schedule",
            help="write the order of the program's loop, as a file for pw-schedule, in place of the module; "
            "for a program that comes from pw-schedule: pw-fuse-launches merges actions",
        )
        add(
            "--emit-irdl",
            dest="irdl",
            metavar="FILE",
            help="write the pw dialect to FILE, for mlir-opt --irdl-file=FILE --allow-unregistered-dialect, "
            "and the result in the generic form that this reads; IRDL knows required attributes, their kinds "
            "and numbers of values, not symbols, optional attributes or rules between operations",
        )
        switch("--list-passes", help="list all passes")
        switch("--show-dialects", help="list the operations of the pw dialect")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        _load_plugins(args)
        arguments: list[str] = []
        for number, argument in enumerate(args):
            if argument == "--":
                arguments += args[number:]
                break
            if len(argument) > 2 and argument[0] == "-" and argument[1] != "-":
                argument = f"-{argument}"  # MLIR's drivers take one dash or two.
            flag, _, value = argument.partition("=")
            if flag.startswith("--") and flag not in self.flags:
                self.check_flag(flag)
                argument = f"--pass-pipeline={flag[2:]}" + (f"{{{value}}}" if value else "")
            arguments.append(argument)
        options = super().parse_args(arguments, namespace)
        self.check_irdl(options)
        for flag in _OTHER_FORMATS if options.pretty else ():
            if getattr(options, self.destinations[flag]):
                self.error(f"--pretty cannot be combined with {flag}")
        if options.split_input_file and (options.reproducer is not None or options.run_reproducer):
            flag = "--run-reproducer" if options.run_reproducer else "--mlir-pass-pipeline-crash-reproducer"
            self.error(f"{flag} cannot be combined with --split-input-file")
        if options.run_reproducer and options.pipeline:
            self.error("--run-reproducer takes the passes from the input; give no others")
        if options.tree_dir is not None and not _prints_ir(options):
            self.error("--mlir-print-ir-tree-dir needs a flag that prints, such as --mlir-print-ir-after-all")
        return options

    def check_irdl(self, options: argparse.Namespace) -> None:
        """Fails when the IRDL file or the text that goes with it has no place."""
        if options.irdl is None:
            return
        for flag in ("split_input_file", "verify_diagnostics", "emit_bytecode", "emit_schedule"):
            if getattr(options, flag):
                self.error(f"--emit-irdl cannot be combined with --{flag.replace('_', '-')}")
        if options.irdl == options.output:
            self.error(f"--emit-irdl and -o both write to '{options.output}'")

    def check_flag(self, flag: str) -> None:
        """Fails when a flag is nearer to one of the driver's own than to any pass."""
        from pathways.dialect.spelling import did_you_mean
        from pathways.passes.manager import registry

        if registry.is_pass(flag[2:]) or flag.startswith("--sdy-"):
            return
        passes = [f"--{name}" for name in (*registry.names(), *registry.BUILTIN_PASSES)]
        self.error(f"unknown flag '{flag}'{did_you_mean(flag, [*self.flags, *passes])}")


def _load_plugins(arguments: Sequence[str]) -> None:
    """Loads the passes that the command line names, before its other flags are read: they may be these."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-load-pass-plugin", "--load-pass-plugin", action="append", default=[])
    try:
        options, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError:
        return  # Reported where all flags are read.
    if not options.load_pass_plugin:
        return
    from pathways.passes.manager.plugins import PluginError, add_plugin
    from pathways.tools.inputs.imports import import_object

    for name in options.load_pass_plugin:
        try:
            add_plugin(import_object(name, "Class"))
        except PluginError as error:
            raise UserError(f"--load-pass-plugin: '{name}' {error}") from None


_OTHER_FORMATS = ("--mlir-print-op-generic", "--emit-bytecode", "--emit-irdl", "--emit-schedule")


def _prints_ir(options: argparse.Namespace) -> bool:
    all_of_them = options.print_before or options.print_after or options.print_change
    return bool(all_of_them or options.mlir_print_ir_before or options.mlir_print_ir_after)


def _passes(text: str) -> list[str]:
    """Returns the names of passes on the command line, between commas."""
    from pathways.dialect.spelling import did_you_mean
    from pathways.passes.manager import registry

    names = text.split(",")
    for name in names:
        if not registry.is_pass(name):
            candidates = [*registry.names(), *registry.BUILTIN_PASSES]
            raise argparse.ArgumentTypeError(f"no pass is named '{name}'{did_you_mean(name, candidates)}")
    return names


def _bool(text: str) -> bool:
    choices = {"1": True, "true": True, "0": False, "false": False}
    if text.lower() not in choices:
        raise argparse.ArgumentTypeError(f"must be 0 or 1, got '{text}'")
    return choices[text.lower()]


if __name__ == "__main__":
    sys.exit(main())
