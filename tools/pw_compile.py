"""`pw-compile` takes a program from its Python file to any form of the IR, down to the XLA modules."""

from __future__ import annotations

import argparse
import mmap
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pathways.tools.common.command import run_here
from pathways.tools.common.errors import UserError
from pathways.tools.common.flags import FlagParser, count, cpu_devices
from pathways.tools.common.supervisor import doing, supervise
from pathways.tools.inputs.argument_flags import read_arguments

if TYPE_CHECKING:
    from pathways.tools.drivers.compile import TooFewDevices

_DESCRIPTION = """\
Compiles a program and prints the module after a phase, or with -o FILE.pwb writes a bundle for pw-run. TARGET
names a @pw.program or a pw.jit function, as path/file.py:function or package.module:function; its module is
imported, with what it prints on standard error. Or it is a file of MLIR, model.mlir, in any form of the IR.
No data is needed, and devices only for the phase `device`, --explain and --executables.
"""

_ARGUMENTS = """\
arguments:
  Each is one word of the shell. Nothing is evaluated.
    f32[8,128]  f32[]             an array of a dtype and a shape, a scalar
    (f32[2], i32[])  [f32[2]]     a tuple, a list
    {"w": f32[8,8], "b": f32[8]}  a dictionary
    3  0.5  "mean"  True  None    such a value itself, for a static argument or a Python number
  dtypes: bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 c64 c128 and other names of MLIR, JAX and
  numpy; key[] is a typed PRNG key of JAX's default kind.
  --args-file names a file of JSON or TOML for larger trees, in which arrays are strings:
    {"args": [{"w": "f32[8,8]"}, "f32[4,8]"], "kwargs": {"lr": "f32[]"}}
  Without either, the module's <function>_example_args or example_args gives the arguments: a tuple, or a
  function that returns one.

examples:
  pw-compile examples/figure2.py:f --args 'f32[2]'
  pw-compile train.py:step --args '{"w": f32[8,8]}' 'f32[4,8]' --kwargs 'lr=f32[]' --compile-to=placed
  pw-compile train.py:step --explain
  pw-compile train.py:step -o step.pwb --executables
  pw-compile step.mlir --compile-to=device
"""

_AGAIN = 75
"""Exit code of a child process that requests to be started again with more devices."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`. The child process may be started again, with more devices."""
    parser = make_parser()
    if arguments is not None:
        return run_here(parser, _run, arguments)
    words = sys.argv[1:]
    # Written by the child: the number of CPU devices that the program needs, when JAX has started with fewer.
    needed = mmap.mmap(-1, 8)
    code = supervise(parser.prog, lambda: run_here(parser, lambda options: _run(options, needed), words))
    if code == _AGAIN:
        words = [f"--cpu-devices={int.from_bytes(needed[:])}", *words]
        code = supervise(parser.prog, lambda: run_here(parser, _run, words))
    return code


def _run(options: argparse.Namespace, needed: mmap.mmap | None = None) -> int:
    if options.target is None:
        raise UserError("expected a target, such as path/file.py:function; see pw-compile --help")
    is_bundle = options.output.endswith(".pwb")
    if is_bundle and options.phase is not None:
        raise UserError(f"{options.output} is a bundle, which cannot be combined with --compile-to")
    if options.executables and not is_bundle:
        raise UserError("--executables needs a bundle: write one with -o FILE.pwb")
    if options.json and not options.explain:
        raise UserError("--json is for --explain")
    if options.pretty and (is_bundle or options.explain or options.phase == "device"):
        raise UserError("--pretty only applies when a form of the module is printed")
    arguments = read_arguments(options)

    doing("importing JAX")
    from pathways.tools.drivers import compile as driver

    try:
        return driver.run(options, arguments)
    except UserError as error:
        if isinstance(error, driver.TooFewDevices) and not (needed is None or options.cpu_devices):
            return _request_devices(error, needed)
        if options.traceback and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        raise


def _request_devices(error: TooFewDevices, needed: mmap.mmap) -> int:
    if error.platform != "cpu":
        print(
            f"pw-compile: note: {error.needed} {error.platform} devices are needed, there are "
            f"{error.present}; compiling for {error.needed} CPU devices",
            file=sys.stderr,
        )
    needed[:] = error.needed.to_bytes(8)
    return _AGAIN


def _more_help() -> str:
    from pathways.compiler.lower.phases import PHASES

    return (
        f"phases:\n  {', '.join(PHASES)}: forms of the module\n  device: XLA's optimized module of each "
        f"computation on each slice, partitioned for its devices\n\n{_ARGUMENTS}"
    )


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    parser = FlagParser(
        "pw-compile",
        "pw-compile TARGET [--args ARG ...] [--kwargs NAME=ARG ...] [-o FILE] [flags]",
        _DESCRIPTION,
        _more_help,
    )
    add = parser.add_argument
    add("target", nargs="?", metavar="TARGET", help="path/file.py:function, package.module:function or .mlir")
    add("--args", nargs="*", action="extend", metavar="ARG", help="positional arguments; see below")
    add("--kwargs", nargs="+", action="extend", default=[], metavar="NAME=ARG", help="named arguments")
    add("--args-file", metavar="FILE", help="all arguments; see below")
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--compile-to",
        dest="phase",
        metavar="PHASE",
        help="print the module after this phase; default: scheduled",
    )
    output.add_argument(
        "--explain",
        action="store_true",
        help="compile, and print a summary of the program in place of the module",
    )
    add("--json", action="store_true", help="print the output of --explain as JSON")
    add("-o", dest="output", default="-", metavar="FILE", help="FILE.pwb: a bundle; default: standard output")
    add("--executables", action="store_true", help="compile, and store the code in the bundle")
    add("--remarks", action="store_true", help="print remarks of the passes on standard error")
    add(
        "--schedule",
        metavar="NAME",
        help="the policy of all loops, or their schedule file, FILE.csv, in place of the program's own",
    )
    add("--fuse", action="store_true", help="compile as if the program said fuse=True")
    add("--zero1", action="store_true", help="compile as if the program said zero1=True")
    add(
        "--cpu-devices",
        type=cpu_devices,
        metavar="N",
        help="call pathways.connect(cpu_devices=N) first; default: JAX's devices, or as many CPU devices "
        "as the slices need",
    )
    add(
        "--mlir-elide-elementsattrs-if-larger",
        dest="elide",
        type=count,
        metavar="N",
        help="print no elements attributes of more than N elements",
    )
    add(
        "--pretty",
        action="store_true",
        help="print pw operations in readable syntax, which pw-opt cannot parse",
    )
    add("--traceback", action="store_true", help="print where an error in your code came from")
    return parser


if __name__ == "__main__":
    sys.exit(main())
