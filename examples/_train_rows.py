"""Functions of hosts for `train.py`: they produce the rows of batches, and measure parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np

VOCABULARY, LENGTH = 128, 32
TEXT = "".join(Path(__file__).with_name(name).read_text() for name in ("char_lm.py", "train.py"))


def excerpts(seed: int, held_out: bool = False) -> grain.MapDataset:
    """Returns inputs and the characters that follow them, int32 of shape (LENGTH,), in an order that the seed
    sets.

    The first tenth of the text is held out.
    """
    text = TEXT[: len(TEXT) // 10] if held_out else TEXT[len(TEXT) // 10 :]
    codes = np.minimum(np.frombuffer(text.encode(), np.uint8), VOCABULARY - 1).astype(np.int32)

    def excerpt(start: int) -> dict[str, np.ndarray]:
        return {"inputs": codes[start : start + LENGTH], "targets": codes[start + 1 : start + LENGTH + 1]}

    return grain.MapDataset.range(len(codes) - LENGTH).seed(seed).shuffle().repeat().map(excerpt)


def norm(params: Any) -> float:
    """Returns the Euclidean norm of all local parameters."""
    return float(sum(float((np.asarray(w, np.float64) ** 2).sum()) for w in jax.tree.leaves(params)) ** 0.5)
