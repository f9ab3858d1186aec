"""Choice of a version with a client."""

from __future__ import annotations

import pytest

from pathways.runtime.proxy.wire.descriptors import VersionRange
from pathways.runtime.proxy.wire.statuses import StatusError

SOME = VersionRange("protocol", 16, 25)


@pytest.mark.parametrize(
    ("first", "last", "chosen"), [(16, 25, 25), (1, 16, 16), (20, 22, 22), (25, 40, 25), (18, 30, 25)]
)
def test_the_newest_version_that_both_speak(first: int, last: int, chosen: int) -> None:
    assert SOME.choose(first, last) == chosen


@pytest.mark.parametrize(("first", "last", "age"), [(3, 15, "old"), (26, 30, "new")])
def test_a_client_without_a_common_version(first: int, last: int, age: str) -> None:
    with pytest.raises(StatusError) as raised:
        SOME.choose(first, last)
    assert f"too {age} for the server: it speaks versions {first} to {last}" in raised.value.message
    assert "the server 16 to 25" in raised.value.message
