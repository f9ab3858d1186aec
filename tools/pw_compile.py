"""`pw-compile` takes a program from its Python file to any form of the IR, down to the XLA modules."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import mmap
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pathways.tools import supervisor
from pathways.tools.argument_files import read_arguments
from pathways.tools.arguments import Parser, count, cpu_devices, version_of
from pathways.tools.files import UserError, write_output
from pathways.tools.signatures import SignatureError, parse_named, parse_value

if TYPE_CHECKING:
    from pathways.compiler.stages import Compiled, Lowered
    from pathways.tools.targets import MlirTarget, Target

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

_DEVICE = "device"
_AGAIN = 75
"""The exit code of a child process that asks to be started again with more devices."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns its exit code: 0, 1 for any error, 130 when interrupted.

    Args:
      arguments: those of the command line when left out, in a process that can report a crash of MLIR and
        start again with more devices; otherwise the tool runs in this process.
    """
    if arguments is not None:
        return _guarded(arguments)
    given = sys.argv[1:]
    # Written by the child: how many CPU devices the program needs, when JAX has started with fewer.
    shared = mmap.mmap(-1, 8)
    code = supervisor.supervise("pw-compile", lambda: _guarded(given, shared))
    if code == _AGAIN:
        wanted = int.from_bytes(shared[:])
        code = supervisor.supervise("pw-compile", lambda: _guarded([f"--cpu-devices={wanted}", *given]))
    return code


def _guarded(arguments: Sequence[str], shared: mmap.mmap | None = None) -> int:
    return supervisor.in_one_line("pw-compile", lambda: _main(arguments, shared))


def _main(arguments: Sequence[str], shared: mmap.mmap | None) -> int:
    options = _parser().parse_args(arguments)
    if options.help or options.version:
        write_output("-", (version_of("pw-compile") if options.version else _help()).encode())
        return 0
    if options.target is None:
        raise UserError("expected a target, such as path/file.py:function; see pw-compile --help")
    is_bundle = options.output.endswith(".pwb")
    if is_bundle and options.phase is not None:
        raise UserError(f"{options.output} is a bundle, which --compile-to does not go with")
    if options.executables and not is_bundle:
        raise UserError("--executables are for a bundle; write one with -o FILE.pwb")
    given = _read_arguments(options)

    supervisor.doing("importing JAX")
    from pathways.tools import targets

    phase = _phase(options)
    if options.cpu_devices is not None:
        targets.use_cpu_devices(options.cpu_devices)
    # Standard output is for the module alone.
    with contextlib.redirect_stdout(sys.stderr), _showing_tracebacks(options.traceback):
        supervisor.doing(f"importing {options.target}")
        target = targets.find(options.target)
        args, kwargs = (target.example_args(), {}) if given is None else given
        supervisor.doing(f"lowering {options.target}")
        lowered = target.lower(args, kwargs, policy=options.policy, fuse=options.fuse)
        compiled = None
        if phase == _DEVICE or options.explain or options.executables:
            supervisor.doing(f"compiling {options.target}")
            compiled = _compile(target, lowered, shared if options.cpu_devices is None else None)
            if compiled is None:
                return _AGAIN
        if is_bundle:
            supervisor.doing(f"writing {options.output}")
            targets.save(options.output, lowered, compiled if options.executables else None)
        supervisor.doing("printing the result")
        text = _text(options, phase, lowered, compiled)
    if options.remarks:
        _print_remarks(lowered)
    if options.explain or not is_bundle:
        write_output("-" if is_bundle else options.output, text.encode(errors="replace") + b"\n")
    return 0


def _text(options: argparse.Namespace, phase: str, lowered: Lowered, compiled: Compiled | None) -> str:
    """What the tool prints: a table, or the module after a phase."""
    from pathways.tools.explain import explain
    from pathways.tools.targets import module_text

    if compiled is not None and options.explain:
        text = explain(lowered, compiled)
    elif compiled is not None and phase == _DEVICE:
        text = compiled.as_text(_DEVICE)
    else:
        text = module_text(lowered, phase, options.elide)
    return text.rstrip("\n")


@contextlib.contextmanager
def _showing_tracebacks(wanted: bool) -> Any:
    """Prints where an error of the user's code came from, if that is wanted."""
    try:
        yield
    except UserError as error:
        if wanted and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        raise


def _compile(target: Target | MlirTarget, lowered: Lowered, shared: mmap.mmap | None) -> Compiled | None:
    """Compiles; None when there are too few devices and another process may make more."""
    from pathways.runtime.resources.cluster import cluster
    from pathways.runtime.resources.manager import ResourceError
    from pathways.tools.targets import CannotRun

    try:
        return target.compile(lowered)
    except CannotRun as error:
        needed = sum(slice.size for slice in lowered.slices.values())
        present = len(cluster().devices)
        if shared is None or not isinstance(error.__cause__, ResourceError) or present >= needed:
            raise
    if (platform := cluster().platform) != "cpu":
        print(
            f"pw-compile: note: {needed} {platform} devices are needed, there are {present}; "
            f"compiling for {needed} CPU devices",
            file=sys.stderr,
        )
    shared[:] = needed.to_bytes(8)
    return None


def _print_remarks(lowered: Lowered) -> None:
    for remark in lowered.remarks:
        print(remark, *remark.notes, sep="\n", file=sys.stderr)
    if not lowered.remarks:
        print("pw-compile: no remarks", file=sys.stderr)


def _read_arguments(options: argparse.Namespace) -> tuple[Sequence[Any], dict[str, Any]] | None:
    """The positional and named arguments that the command line gives; None where it gives none."""
    if options.args_file is not None:
        if options.args is not None or options.kwargs:
            raise UserError("arguments are given by --args-file and by --args or --kwargs; give one of them")
        return read_arguments(options.args_file)
    if options.args is None and not options.kwargs:
        return None
    args = [
        _read(parse_value, text, f"argument {number}") for number, text in enumerate(options.args or (), 1)
    ]
    kwargs: dict[str, Any] = {}
    for text in options.kwargs:
        name, value = _read(parse_named, text, "named argument")
        if name in kwargs:
            raise UserError(f"argument '{name}' is given twice")
        kwargs[name] = value
    return args, kwargs


def _read[T](parse: Callable[[str], T], text: str, what: str) -> T:
    try:
        return parse(text)
    except SignatureError as error:
        shown = "".join(c if c.isprintable() else " " for c in text)
        caret = " " * (error.column - 1) + "^"
        raise UserError(f"{what}, column {error.column}: {error}\n{shown}\n{caret}") from None


def _phase(options: argparse.Namespace) -> str:
    from pathways.compiler.lowering import PHASES

    wanted = options.phase or PHASES[-1]
    phases = [*PHASES, _DEVICE]
    if wanted in phases:
        return wanted
    near = difflib.get_close_matches(wanted, phases, 1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UserError(f"unknown phase '{wanted}'; {hint}the phases are {', '.join(phases)}")


def _help() -> str:
    from pathways.compiler.lowering import PHASES

    phases = ", ".join(PHASES)
    listed = (
        f"phases:\n  {phases}: forms of the module\n  {_DEVICE}: XLA's optimized module of each "
        "computation on each slice, partitioned for its devices\n"
    )
    return f"{_parser().format_help()}\n{listed}\n{_ARGUMENTS}"


def _parser() -> Parser:
    parser = Parser(
        "pw-compile",
        usage="pw-compile TARGET [--args ARG ...] [--kwargs NAME=ARG ...] [-o FILE] [flags]",
        description=_DESCRIPTION,
    )
    add = parser.add_argument
    add("target", nargs="?", metavar="TARGET", help="path/file.py:function, package.module:function or .mlir")
    add("--args", nargs="*", action="extend", metavar="ARG", help="positional arguments; see below")
    add(
        "--kwargs",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=ARG",
        help="named arguments",
    )
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
        help="compile, and print what the program does in place of the module",
    )
    add("-o", dest="output", default="-", metavar="FILE", help="FILE.pwb: a bundle; default: standard output")
    add("--executables", action="store_true", help="compile, and store the code in the bundle")
    add("--remarks", action="store_true", help="print what the passes remarked, on standard error")
    add(
        "--schedule",
        "--policy",
        dest="policy",
        metavar="NAME",
        help="the policy of pw-schedule for all loops, in place of the program's own",
    )
    add("--fuse", action="store_true", help="compile as if the program said fuse=True")
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
    add("--traceback", action="store_true", help="print where an error in your code came from")
    add("--version", action="store_true", help="print the version")
    add("-h", "--help", action="store_true", help="print this")
    return parser


if __name__ == "__main__":
    sys.exit(main())
