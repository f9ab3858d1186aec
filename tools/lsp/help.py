"""Help of `pw-lsp` on operations, attributes and passes: their documentation, as Markdown."""

from __future__ import annotations

import inspect

from pathways.dialect import OPERATIONS, PwOp
from pathways.passes.manager import registry
from pathways.passes.manager.base import options_of


def operation_help(name: str) -> str | None:
    """Returns the documentation of an operation with its attributes; None if it is not one of `pw`."""
    if name not in OPERATIONS:
        return None
    op = OPERATIONS[name]
    fields = op.fields().values()
    rows = [f"- `{field.name}`{'' if field.required else ' (optional)'}: {field.doc}" for field in fields]
    return "\n\n".join([f"**`{name}`**", inspect.cleandoc(op.__doc__ or ""), "\n".join(rows)]).rstrip()


def attribute_help(op: type[PwOp], name: str) -> str | None:
    """Returns the documentation of an attribute of an operation."""
    field = op.fields().get(name)
    if field is None:
        return None
    return f"**`{op.OPERATION_NAME}`** `{name}`: {field.doc}\n\n{field.kind.description}"


def pass_help(name: str) -> str | None:
    """Returns the documentation of a pass with its options; None if it is none of ours."""
    if name not in registry.MODULES:
        return None
    pass_type = registry.load(name)
    rows = [
        f"- `{field.name.replace('_', '-')}`: {field.metadata.get('help', '')}"
        for field in options_of(pass_type).values()
    ]
    return "\n\n".join([f"**`{name}`**", inspect.cleandoc(pass_type.__doc__ or ""), "\n".join(rows)]).rstrip()
