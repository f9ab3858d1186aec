"""Calls of a program in which a step fails: the steps that need none of its results still run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pathways.runtime.local.codegen import Arrays, Line
from pathways.runtime.local.failures import describe_launch
from pathways.runtime.local.local_target import LocalTarget
from pathways.runtime.plan.plan import Launch, Plan, Release, Slot, Transfer


class PartialFailure(Exception):
    """Failure of some steps of a call.

    Attributes:
      outputs: for each output of the program its array, or the error of the step that it needs.
    """

    def __init__(self, outputs: Sequence[Any]) -> None:
        super().__init__("steps of a program have failed")
        self.outputs = outputs


class PartialTarget(LocalTarget):
    """Target of generated functions that raise a `PartialFailure` if a step fails.

    It takes the arguments of a `LocalTarget`.
    """

    def __init__(self, plan: Plan, *arguments: Any) -> None:
        super().__init__(plan, *arguments)
        explain = self.explain
        assert explain is not None
        self._explain: Callable[[Mapping[int, Line], Exception, Arrays], None] = explain
        self.explain = self._run_rest

    def _run_rest(self, lines: Mapping[int, Line], error: Exception, arrays: Arrays) -> None:
        """Runs the steps after one that failed; see `StepTarget.explain`.

        Raises:
          PartialFailure: always, unless no step has failed.
        """
        trace = error.__traceback__
        assert trace is not None
        failed = lines.get(trace.tb_lineno)
        if failed is None or failed.step is None:
            return
        try:
            self._explain(lines, error, arrays)
        except Exception as better:
            error = better
        variables = trace.tb_frame.f_locals
        values: dict[Slot, Any] = {**self.constants, **dict(zip(self._passed(), arrays, strict=True))}
        for number, line in lines.items():
            if number < trace.tb_lineno:
                # A slot that has ended has no variable, or the variable of a later slot.
                values.update(
                    (slot, variables[name]) for slot, name in line.written.items() if name in variables
                )
        position = next(n for n, step in enumerate(self._plan.steps) if step is failed.step)
        if isinstance(failed.step, Launch):
            values.update(dict.fromkeys(failed.step.results, error))
            position += 1
        # Transfers that were issued in the same call as one that failed are done again.
        with self.order or contextlib.nullcontext():
            for step in self._plan.steps[position:]:
                self._run_step(step, values)
            outputs = [
                self._finished(number, slice, values[slot])
                for number, result in enumerate(self._plan.results)
                for slice, slot in result.slots.items()
            ]
        raise PartialFailure(outputs) from error

    def _passed(self) -> Iterator[Slot]:
        """Yields the slots of the arrays that a call gets."""
        for argument in self._plan.arguments:
            if argument.constant is None:
                yield from argument.slots.values()

    def _run_step(self, step: Any, values: dict[Slot, Any]) -> None:
        """Runs a step, unless it lacks an operand; its results, or its error, are added to the values."""
        if isinstance(step, Release):
            for slot in step.delete:
                if not isinstance(values[slot], Exception):
                    values[slot].delete()
            for slot in step.slots:
                values.pop(slot, None)
            return
        operands = [values[slot] for slot in step.operands]
        failed = next((operand for operand in operands if isinstance(operand, Exception)), None)
        results: Sequence[Any] = [failed] * len(step.results)
        if failed is None:
            is_launch = isinstance(step, Launch)
            try:
                results = self._launch(step, operands) if is_launch else self._move(step, operands)
            except Exception as error:
                words = describe_launch(step) if is_launch else f"transfer {step.src} -> {step.dst}"
                error.add_note(f"in program {self._plan.name}, {words}")
                results = [error] * len(step.results)
        values.update(zip(step.results, results, strict=True))

    def _launch(self, launch: Launch, operands: list[Any]) -> Sequence[Any]:
        kernel = self.kernel(launch)
        if kernel.handlers is None:
            return kernel.execute(operands)
        if kernel.keep_token is None:
            issued = kernel.execute(operands)
        else:
            issued = kernel.execute(operands, True)
            kernel.keep_token(issued.consume_token())
        return issued.consume_with_handlers(kernel.handlers)

    def _move(self, transfer: Transfer, operands: list[Any]) -> Sequence[Any]:
        routed = self.routed(transfer)
        return self.copy_arrays(operands, *self.copies([transfer])) if routed is None else routed(operands)

    def _finished(self, result: int, slice: str, value: Any) -> Any:
        finish = None if isinstance(value, Exception) else self.finish(result, slice)
        return value if finish is None else finish(value)
