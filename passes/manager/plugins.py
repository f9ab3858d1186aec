"""Passes from outside of the package, which `pw-opt --load-pass-plugin` adds to the registry."""

from __future__ import annotations

import inspect
import re

from pathways.dialect import Form
from pathways.passes.manager import registry
from pathways.passes.manager.base import Pass, options_of


class PluginError(ValueError):
    """Error of an object that cannot be a pass; continues a sentence that begins with the object."""


def add_plugin(kind: object) -> None:
    """Adds a pass to the registry, under its name.

    Raises:
      PluginError: it is not a pass, or has the name of another one.
    """
    if not isinstance(kind, type) or not issubclass(kind, Pass):
        got = "class" if isinstance(kind, type) else type(kind).__name__
        raise PluginError(f"is not a pass: expected a subclass of pathways.extending.Pass, got a {got}")
    if "__dataclass_params__" not in vars(kind) or inspect.isabstract(kind):
        raise PluginError("is not a pass: it needs @dataclasses.dataclass(frozen=True) and a method 'run'")
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", name):
        raise PluginError(f"is not a pass: its name must be words in lower case joined by '-', got {name!r}")
    if registry.is_pass(name):
        raise PluginError(f"has the name of another pass: '{name}'")
    forms = getattr(kind, "input_forms", ())
    if not forms or not all(isinstance(form, Form) for form in forms):
        raise PluginError("is not a pass: its input_forms must be forms of pathways.extending.FORMS")
    for option in options_of(kind).values():
        if not isinstance(option.default, bool | int | float | str):
            raise PluginError(f"is not a pass: option '{option.name}' needs a text or number as its default")
    registry.PLUGINS[name] = kind
