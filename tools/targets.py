"""Programs by the names that a command line gives them."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jaxlib.mlir import ir

from pathways.compiler.from_mlir import lower_module
from pathways.compiler.lowering import ProgramError
from pathways.compiler.names import symbol
from pathways.compiler.placed import PlacedFunction
from pathways.compiler.program import Program
from pathways.compiler.stages import Compiled, Lowered
from pathways.dialect import make_context
from pathways.passes.base import PassFailure
from pathways.passes.driver import Diagnostics, run_passes
from pathways.passes.pipeline import Options
from pathways.passes.schedule.schedule import POLICIES
from pathways.runtime.bundle.manifest import BundleError
from pathways.runtime.local.executable import CompileError
from pathways.runtime.resources.cluster import connect
from pathways.runtime.resources.manager import ResourceError
from pathways.tools.files import UserError, read_input
from pathways.tools.signatures import Array
from pathways.tools.source import Source, parse

_OURS = (ProgramError, CompileError, ResourceError)
"""Errors that name the place themselves."""


class CannotRun(UserError):
    """A program that cannot be compiled; the cause says why."""


def use_cpu_devices(number: int) -> None:
    """Makes the cluster of so many CPU devices."""
    try:
        connect(cpu_devices=number)
    except (RuntimeError, ValueError) as error:
        raise UserError(str(error)) from None


def find(name: str) -> Target | MlirTarget:
    """Imports the module of `path/file.py:function` or `package.module:function` and finds the program.

    A name that ends in `.mlir` is a file that holds the program itself.

    Raises:
      UserError: says what is wrong with the name, the file or what is found there.
    """
    if name.endswith(".mlir"):
        return _parse_file(name)
    where, colon, attribute = name.rpartition(":")
    is_file = (where or name).endswith(".py") or "/" in (where or name)
    if colon and not (where and attribute):
        raise UserError(f"expected path/file.py:function or package.module:function, got '{name}'")
    module = _import_file(where or name) if is_file else _import_module(where or name)
    found = _programs(module)
    if not colon:
        raise UserError(f"'{name}' names no function{_list(name, found)}")
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            near = difflib.get_close_matches(attribute, found, 1)
            hint = f"; did you mean '{near[0]}'?" if near else _list(where, found)
            raise UserError(f"there is no '{attribute}' in {where}{hint}")
        value = getattr(value, part)
    if isinstance(value, PlacedFunction):
        return Target(attribute, where, module, value.alone)
    if isinstance(value, Program):
        return Target(attribute, where, module, value)
    hint = "; put @pw.program above it" if inspect.isfunction(value) else _list(where, found)
    raise UserError(f"'{attribute}' in {where} is no program: it is a {_kind(value)}{hint}")


@dataclasses.dataclass(frozen=True)
class Target:
    """A program and the module that it was found in.

    Attributes:
      name: its name in the module.
      where: the file or the module, as the user wrote it.
      module: the module.
      program: the program.
    """

    name: str
    where: str
    module: types.ModuleType
    program: Program

    def example_args(self) -> tuple[Any, ...]:
        """The arguments that stand beside the program; none where there are no examples.

        Raises:
          UserError: they are no tuple, or making them failed.
        """
        for name in (f"{self.name}_example_args", "example_args"):
            if not hasattr(self.module, name):
                continue
            value = getattr(self.module, name)
            if callable(value):
                value = _call(f"{name}() in {self.where}", value)
            if not isinstance(value, tuple):
                raise UserError(f"{name} in {self.where} must be a tuple of arguments, got a {_kind(value)}")
            return value
        return ()

    def lower(
        self, args: Sequence[Any], kwargs: dict[str, Any], policy: str | None = None, fuse: bool = False
    ) -> Lowered:
        """Lowers the program for arguments, with `signatures.Array` for those that have no value.

        Raises:
          UserError: the arguments do not fit, or the user's code or a pass refuses them.
        """
        args = [_abstract(value) for value in args]
        kwargs = {name: _abstract(value) for name, value in kwargs.items()}
        self._check_signature(args, kwargs)
        program = self.program.with_options(_options(self.program.options, policy, fuse))
        return _call(f"program '{self.name}'", program.lower, *args, **kwargs)

    def compile(self, lowered: Lowered) -> Compiled:
        """Compiles for the devices of the cluster.

        Raises:
          CannotRun: with the error as its cause.
        """
        return _call(f"program '{self.name}'", lowered.compile)

    def _check_signature(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        try:
            signature = inspect.signature(self.program)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
            shown = f"{self.name}{signature.replace(parameters=bare, return_annotation=signature.empty)}"
            hint = "" if args or kwargs else f"; give --args, or define {self.name}_example_args beside it"
            code = getattr(inspect.unwrap(self.program), "__code__", None)
            place = f"\n  at {code.co_filename}:{code.co_firstlineno}" if code else ""
            raise UserError(f"{shown}: {error}{hint}{place}") from None


@dataclasses.dataclass(frozen=True)
class MlirTarget:
    """A program that is a file of MLIR; see `Target`."""

    name: str
    module: ir.Module

    def example_args(self) -> tuple[Any, ...]:
        """None: the module says what it takes."""
        return ()

    def lower(
        self, args: Sequence[Any], kwargs: dict[str, Any], policy: str | None = None, fuse: bool = False
    ) -> Lowered:
        """Takes the module through the phases that follow its form.

        Raises:
          UserError: there are arguments, or a pass refuses the module.
        """
        if args or kwargs:
            raise UserError(f"{self.name} says itself what it takes; it gets no arguments")
        name = symbol(Path(self.name).stem)
        return _call(self.name, lower_module, self.module, name, _options(Options(), policy, fuse))

    def compile(self, lowered: Lowered) -> Compiled:
        """Compiles for the devices of the cluster; see `Target.compile`."""
        return _call(self.name, lowered.compile)


def save(path: str, lowered: Lowered, compiled: Compiled | None) -> None:
    """Writes a bundle, with executables where it is compiled.

    Raises:
      UserError: the program has no place in one, or the file cannot be written.
    """
    try:
        if compiled is None:
            lowered.save(path)
        else:
            compiled.save(path, executables=True)
    except (BundleError, CompileError) as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(f"cannot write output file '{path}': {error.strerror or error}") from None


def _options(options: Options, policy: str | None, fuse: bool) -> Options:
    if policy is not None:
        if policy not in POLICIES:
            near = difflib.get_close_matches(policy, POLICIES, 1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise UserError(f"unknown policy '{policy}'; {hint}the policies are {', '.join(POLICIES)}")
        options = dataclasses.replace(options, policy=policy, schedule_file="")
    return dataclasses.replace(options, fuse=True) if fuse else options


def _parse_file(path: str) -> MlirTarget:
    """Reads a module and verifies it; the first diagnostic becomes the error."""
    source = Source(path, read_input(path))
    context = make_context()
    with Diagnostics(context) as seen:
        try:
            module = parse(source, context)
            run_passes(module, [])
        except (ir.MLIRError, PassFailure):
            first = seen.errors[0] if seen.errors else None
            raise UserError(str(first).removeprefix("error: ") if first else f"{path}: not MLIR") from None
    return MlirTarget(path, module)


def module_text(lowered: Lowered, phase: str, elide: int | None = None) -> str:
    """The module after a phase; elements attributes of more than `elide` elements are left out."""
    try:
        text = lowered.as_text(phase)
    except ValueError as error:
        raise UserError(str(error)) from None
    if elide is None:
        return text
    module = ir.Module.parse(text, make_context())
    return module.operation.get_asm(large_elements_limit=elide)


def _import_file(path: str) -> types.ModuleType:
    file = Path(path)
    if not file.is_file():
        problem = "it is a folder" if file.is_dir() else "no such file"
        raise UserError(f"cannot import {path}: {problem}")
    # As Python itself would run it, except that it is not `__main__`.
    sys.path.insert(0, str(file.parent.resolve()))
    name = file.stem if file.stem not in sys.modules else f"_{file.stem}_of_pw_compile"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"cannot import {path}: it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _import(path, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


def _import_module(name: str) -> types.ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    return _import(name, lambda: importlib.import_module(name))


def _import[T](name: str, run: Callable[[], T]) -> T:
    """Runs the user's module, which may do anything; one line tells what went wrong."""
    arguments, sys.argv = sys.argv, [name]
    try:
        return run()
    except KeyboardInterrupt:
        raise
    except SyntaxError as error:
        raise UserError(f"cannot import {name}: {error.msg} ({error.filename}:{error.lineno})") from error
    except BaseException as error:
        frame = _frame_of_user(error)
        place = f" ({frame.filename}:{frame.lineno})" if frame else ""
        first, _, _ = _describe(error).partition("\n")
        raise UserError(f"cannot import {name}: {first}{place}") from error
    finally:
        sys.argv = arguments


def _call[T](what: str, run: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Calls what may fail in the user's code; the error is theirs, with the line it comes from."""
    try:
        return run(*args, **kwargs)
    except _OURS as error:
        raise CannotRun(str(error)) from error
    except (Exception, SystemExit) as error:
        frame = _frame_of_user(error)
        place = f"\n  at {frame.filename}:{frame.lineno}: {frame.line}" if frame else ""
        raise CannotRun(f"{what}: {_describe(error)}{place}") from error


def _describe(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ends the process with sys.exit({error.code!r})"
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _frame_of_user(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost line that is neither ours, nor that of an installed package, nor Python's own."""
    installed = [str(Path(m.__file__).parent) for m in (jax, traceback) if m.__file__]
    ours = [str(Path(__file__).parents[1] / name) for name in ("compiler", "passes", "runtime", "tools")]
    package = str(Path(sys.modules["pathways"].__file__ or "").parent)
    foreign = (*installed, *ours, package, "<frozen")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(foreign)]
    outside = [f for f in frames if "site-packages" not in f.filename]
    return next(reversed(outside or frames), None)


def _abstract(value: Any) -> Any:
    """What `lower` takes for a value of `signatures`."""
    match value:
        case Array("key", shape):
            dtype = jax.eval_shape(lambda: jax.random.key(0)).dtype
            return jax.ShapeDtypeStruct(shape, dtype)
        case Array(name, shape):
            wanted = jax.numpy.dtype(name)
            # Otherwise JAX would narrow it, with no more than a warning.
            if wanted.itemsize > jax.dtypes.canonicalize_dtype(wanted).itemsize:
                raise UserError(f"an argument of dtype {name} needs JAX_ENABLE_X64=1 in the environment")
            return jax.ShapeDtypeStruct(shape, wanted)
        # Not a named tuple of the examples, which holds no `Array`.
        case tuple() | list() if type(value) in (tuple, list):
            return type(value)(map(_abstract, value))
        case dict():
            return {key: _abstract(entry) for key, entry in value.items()}
    return value


def _programs(module: types.ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, Program | PlacedFunction)]


def _list(where: str, names: Sequence[str]) -> str:
    return f"; the programs in {where} are {', '.join(names)}" if names else f"; {where} has no programs"


def _kind(value: Any) -> str:
    if inspect.isfunction(value):
        return "plain function"
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
