"""What belongs to one process."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class OfProcess:
    """Something that is bound to devices of this process, and means nothing as a copy or elsewhere."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{self!r} belongs to this process and cannot be pickled or copied; save a bundle: "
            "program.lower(*args).save('program.pwb'); pathways.load('program.pwb') runs it elsewhere"
        )
