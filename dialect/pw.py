"""Operations of the dialect, under the name by which MLIR's bindings look for a dialect `pw`.

Without a module of this name they search for one again at every operation they return, which costs more
than everything else together.
"""

from pathways.dialect.operations.ops import *  # noqa: F403
