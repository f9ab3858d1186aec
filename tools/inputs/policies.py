"""Custom policies on a command line."""

from __future__ import annotations

from pathways.passes.schedule.policies.custom import register
from pathways.tools.common.errors import UserError
from pathways.tools.inputs.imports import import_object


def named_policy(text: str) -> str:
    """Returns a schedule as passes know it: a custom policy is imported, and has the name of `register`.

    Args:
      text: a schedule, or `path/file.py:policy` or `package.module:policy`, with options as others have.

    Raises:
      UserError: there is no such policy.
    """
    name, bracket, options = text.partition("(")
    if ":" not in name:
        return text
    policy = import_object(name.strip(), "policy")
    if not callable(policy):
        raise UserError(f"'{name}' is not a policy: {type(policy).__name__} cannot be called")
    return f"{register(policy)}{bracket}{options}"
