"""Programs by the names that a command line gives them."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jaxlib.mlir import ir

from pathways.compiler.from_mlir import lower_module
from pathways.compiler.frontend.user_code import symbol
from pathways.compiler.placed import PlacedFunction
from pathways.compiler.program import Program
from pathways.compiler.stages import Compiled, Lowered
from pathways.dialect import make_context
from pathways.dialect.spelling import did_you_mean
from pathways.passes.manager.base import PassFailure
from pathways.passes.manager.driver import Diagnostics, run_passes
from pathways.passes.pipeline import Options
from pathways.passes.schedule.policies.request import RequestError, policy_or_file
from pathways.tools.common.errors import UserError
from pathways.tools.common.files import BUNDLE, is_file
from pathways.tools.common.source import parse, read_source
from pathways.tools.inputs.imports import import_parent
from pathways.tools.inputs.policies import named_policy
from pathways.tools.inputs.signatures import ArrayText
from pathways.tools.inputs.user_code import call


def find(name: str) -> PythonTarget | MlirTarget:
    """Imports the module of `path/file.py:function` or `package.module:function` and finds the program.

    A name that ends in `.mlir` is a file that holds the program itself.

    Raises:
      UserError: names the error in the name, the file or the object.
    """
    if name.endswith(".mlir"):
        return _parse_file(name)
    if (path := name.rpartition(":")[0] or name).endswith(BUNDLE):
        raise UserError(f"'{path}' is a bundle, which is already compiled; pw-run {path} runs it")
    module, source, attribute = import_parent(name, "function", note="pw-compile")
    programs = _programs(module)
    if not attribute:
        raise UserError(f"'{name}' names no function{_list(name, programs)}")
    value: Any = module
    for name_part in attribute.split("."):
        if not hasattr(value, name_part):
            listed = did_you_mean(attribute, programs) or _list(source, programs)
            raise UserError(f"there is no '{attribute}' in {source}{listed}")
        value = getattr(value, name_part)
    if isinstance(value, PlacedFunction):
        return PythonTarget(attribute, source, module, value.alone)
    if isinstance(value, Program):
        return PythonTarget(attribute, source, module, value)
    advice = "; put @pw.program above it" if inspect.isfunction(value) else _list(source, programs)
    raise UserError(f"'{attribute}' in {source} is not a program: it is a {_kind(value)}{advice}")


@dataclasses.dataclass(frozen=True)
class PythonTarget:
    """Program, and the module that it was found in.

    Attributes:
      source: the file or the module, as the user wrote it.
    """

    name: str
    source: str
    module: types.ModuleType
    program: Program

    def example_args(self) -> tuple[Any, ...]:
        """Returns the arguments given beside the program; none where there are no examples.

        Raises:
          UserError: they are not a tuple, or computing them failed.
        """
        for name in (f"{self.name}_example_args", "example_args"):
            if not hasattr(self.module, name):
                continue
            value = getattr(self.module, name)
            if callable(value):
                value = call(f"{name}() in {self.source}", value)
            if not isinstance(value, tuple):
                raise UserError(f"{name} in {self.source} must be a tuple of arguments, got a {_kind(value)}")
            return value
        return ()

    def lower(
        self, args: Sequence[Any], kwargs: dict[str, Any], schedule: str | None = None, **flags: bool
    ) -> Lowered:
        """Lowers the program for arguments, with `signatures.Array` for arguments without a value.

        `fuse` and `zero1` override the program's options.

        Raises:
          UserError: the arguments do not fit, or the user's code or a pass rejects them.
        """
        args = [_abstract(value) for value in args]
        kwargs = {name: _abstract(value) for name, value in kwargs.items()}
        self._check_signature(args, kwargs)
        program = self.program.with_options(**_options(schedule, flags))
        return call(f"program '{self.name}'", program.lower, *args, **kwargs)

    def compile(self, lowered: Lowered) -> Compiled:
        """Compiles for the devices of the cluster.

        Raises:
          CannotRun: with the error as its cause.
        """
        return call(f"program '{self.name}'", lowered.compile)

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
            advice = "" if args or kwargs else f"; give --args, or define {self.name}_example_args beside it"
            code = getattr(inspect.unwrap(self.program), "__code__", None)
            place = f"\n  at {code.co_filename}:{code.co_firstlineno}" if code else ""
            raise UserError(f"{shown}: {error}{advice}{place}") from None


@dataclasses.dataclass(frozen=True)
class MlirTarget:
    """Program in a file of MLIR; see `PythonTarget`."""

    name: str
    module: ir.Module

    def example_args(self) -> tuple[Any, ...]:
        """Returns none: the module has the types of its arguments."""
        return ()

    def lower(
        self, args: Sequence[Any], kwargs: dict[str, Any], schedule: str | None = None, **flags: bool
    ) -> Lowered:
        """Takes the module through the phases that follow its form.

        Raises:
          UserError: there are arguments, or a pass rejects the module.
        """
        if args or kwargs:
            raise UserError(f"{self.name} already specifies its arguments; give none")
        name = symbol(Path(self.name).stem)
        return call(self.name, lower_module, self.module, name, Options(**_options(schedule, flags)))

    def compile(self, lowered: Lowered) -> Compiled:
        """Compiles for the devices of the cluster; see `PythonTarget.compile`."""
        return call(self.name, lowered.compile)


def _options(schedule: str | None, flags: Mapping[str, bool]) -> dict[str, Any]:
    """Returns the `Options` of the compiler from the flags."""
    options: dict[str, Any] = {}
    if schedule is not None:
        try:
            options["policy"], file = policy_or_file(named_policy(schedule))
        except RequestError as error:
            raise UserError(f"--schedule is {error}") from None
        if file and not is_file(file):
            raise UserError(f"--schedule: there is no file '{file}'")
        options["schedule_file"] = file
    return options | {name: True for name, is_set in flags.items() if is_set}


def _parse_file(path: str) -> MlirTarget:
    """Reads a module and verifies it; the first diagnostic becomes the error."""
    source = read_source(path)
    context = make_context()
    with Diagnostics(context) as seen:
        try:
            module = parse(source, context)
            run_passes(module, [])
        except (ir.MLIRError, PassFailure):
            first = seen.errors[0] if seen.errors else None
            raise UserError(str(first).removeprefix("error: ") if first else f"{path}: not MLIR") from None
    return MlirTarget(path, module)


def _abstract(value: Any) -> Any:
    """Returns the argument of `lower` for a value of `signatures`."""
    match value:
        case ArrayText("key", shape):
            dtype = jax.eval_shape(lambda: jax.random.key(0)).dtype
            return jax.ShapeDtypeStruct(shape, dtype)
        case ArrayText(name, shape):
            dtype = jax.numpy.dtype(name)
            # Otherwise JAX would narrow it, with no more than a warning.
            if dtype.itemsize > jax.dtypes.canonicalize_dtype(dtype).itemsize:
                raise UserError(f"an argument of dtype {name} needs JAX_ENABLE_X64=1 in the environment")
            return jax.ShapeDtypeStruct(shape, dtype)
        # Not a named tuple of the examples, which holds no `Array`.
        case tuple() | list() if type(value) in (tuple, list):
            return type(value)(map(_abstract, value))
        case dict():
            return {key: _abstract(item) for key, item in value.items()}
    return value


def _programs(module: types.ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, Program | PlacedFunction)]


def _list(source: str, names: Sequence[str]) -> str:
    return f"; the programs in {source} are {', '.join(names)}" if names else f"; {source} has no programs"


def _kind(value: Any) -> str:
    if inspect.isfunction(value):
        return "plain function"
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
