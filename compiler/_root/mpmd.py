"""Access to Shardy's MPMD front end: makes it importable on the jaxlib that is installed.

```python
import pathways as pw
import pathways.mpmd
import shardy.integrations.python.jax.mpmd as mpmd

step = pw.from_mpmd(mpmd.jit(f, config).lower(*args)).compile()
```

Its bindings are in every jaxlib, under the names that they had where Shardy was built: `jax.jaxlib._jax`, and
`mlir` for the front end itself. Unless another module has these names, they refer to jaxlib's from here on.

Raises:
  ImportError: the front end is not installed; the message says how to install it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

_FRONT_END = "shardy.integrations.python.jax.mpmd"
_ALIASES = {"jax.jaxlib._jax": "jaxlib._jax", "mlir": "jaxlib.mlir"}

_PIP = (
    'pip install "shardy-mpmd @ git+https://github.com/openxla/shardy'
    '#subdirectory=shardy/integrations/python/jax/mpmd" immutabledict'
)
"""Command that installs the front end, which is on no package index."""

__all__: list[str] = []


def _make_importable() -> None:
    for alias, name in _ALIASES.items():
        if alias not in sys.modules and (alias != "mlir" or importlib.util.find_spec(alias) is None):
            sys.modules[alias] = importlib.import_module(name)


def __dir__() -> list[str]:
    return __all__


_make_importable()
try:
    importlib.import_module(_FRONT_END)
except ModuleNotFoundError as error:
    raise ImportError(
        f"pathways.mpmd needs Shardy's MPMD front end ({error}): {_PIP}", name=error.name
    ) from None
