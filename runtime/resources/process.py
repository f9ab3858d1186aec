"""Base of objects that cannot leave their process."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class ProcessBound:
    """Base of objects that are bound to devices of this process: they cannot be pickled or copied."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{self!r} belongs to this process and cannot be pickled or copied; save a bundle: "
            "program.lower(*args).save('program.pwb'); pathways.load('program.pwb') runs it elsewhere"
        )
