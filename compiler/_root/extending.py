"""Interface of policies and passes outside of the package; docs/extending.md shows one of each.

A policy is a function from a `Pipeline` to an `Order`, for `pw.program(schedule=...)`; `order_by` runs it as
the compiler does. A pass is a frozen dataclass below `Pass`, which `pw-opt --load-pass-plugin` loads.
"""

from __future__ import annotations

from pathways.dialect import FORMS, Form, nested_ops, ops_named, symbol_table
from pathways.passes.analysis.operations import byte_size
from pathways.passes.manager.base import Pass, fail, main_function, option, remark
from pathways.passes.schedule.policies.actions import Action
from pathways.passes.schedule.policies.custom import order_by
from pathways.passes.schedule.policies.pipeline import Order, Pipeline, Policy, PolicyError, step_time

__all__ = [
    "FORMS",
    "Action",
    "Form",
    "Order",
    "Pass",
    "Pipeline",
    "Policy",
    "PolicyError",
    "byte_size",
    "fail",
    "main_function",
    "nested_ops",
    "ops_named",
    "option",
    "order_by",
    "remark",
    "step_time",
    "symbol_table",
]


def __dir__() -> list[str]:
    return __all__
