"""Checkpoints: trees of arrays in folders of Orbax, one for each step.

```python
saving = pw.checkpoint.save("checkpoints", state, step)  # in the background
state = pw.checkpoint.restore("checkpoints", state)      # onto the slices of `state`
```

Orbax reads and writes the same folders without us. It is an extra: `pip install 'pathways-mlir[checkpoint]'`.
"""

from __future__ import annotations

from pathways.compiler.data.checkpoint import latest, restore, save, steps

__all__ = ["latest", "restore", "save", "steps"]


def __dir__() -> list[str]:
    return __all__
