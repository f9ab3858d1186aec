"""Names of the custom calls of an installed JAX: jaxlib registers some, and JAX lowers to others.

As a script, prints them as JSON; run by environments of other releases.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import pkgutil
import re
from pathlib import Path

import jax
import jax.experimental.sparse  # It registers calls.
from jaxlib import xla_client

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")

_NAMED = re.compile(
    r"(?:(?:custom_call|ffi_lowering|ffi_call)\(\s*"
    r"|(?:target_name|_CALL_NAME)\s*=\s*(?:[\w.]*StringAttr\.get\(\s*)?"
    r"|_start_custom_call\(\s*)"
    r'f?"([^"\s]+)"'
)
_VALUES = {"partition": "", "device": "cpu"}


def registered() -> set[str]:
    """Returns the calls for CPUs, and those for GPUs if a plugin is installed; it needs no GPU."""
    jax.devices("cpu")  # Until then, XLA has none of them.
    names = set(xla_client.custom_call_targets("Host"))
    for plugin in PLUGINS:
        try:
            folder = importlib.import_module(plugin).__path__
        except ImportError:
            continue
        for module in pkgutil.iter_modules(folder):
            with contextlib.suppress(ImportError):  # Some libraries are not modules.
                loaded = importlib.import_module(f"{plugin}.{module.name}")
                names.update(loaded.registrations() if hasattr(loaded, "registrations") else ())
    return names


def lowered_to() -> set[str]:
    """Returns the names in the source of JAX's rules; `cu` represents the prefix of any GPU."""
    names: set[str] = set()
    for path in Path(jax.__file__).parent.rglob("*.py"):
        source = path.read_bytes() if "internal_test_util" not in path.parts else b""
        if any(word in source for word in (b"custom_call", b"ffi_", b"_CALL_NAME")):
            names.update(_NAMED.findall(source.decode()))
    return {re.sub(r"\{(\w+)\}", lambda value: _VALUES.get(value[1], "cu"), name) for name in names}


if __name__ == "__main__":
    print(json.dumps([jax.__version__, sorted(registered() | lowered_to())]))
