"""Message classes come from the jaxlib that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathways.runtime.proxy import descriptors
from pathways.runtime.proxy.descriptors import DescriptorError


def test_messages_of_the_installed_jaxlib() -> None:
    request = descriptors.messages()["xla.ifrt.proxy.IfrtRequest"]()
    request.destruct_array_request.array_handle.extend([3, 4])
    read = descriptors.messages().parse("xla.ifrt.proxy.IfrtRequest", request.SerializeToString())
    assert read.WhichOneof("request") == "destruct_array_request"
    assert list(read.destruct_array_request.array_handle) == [3, 4]


def test_a_message_that_is_none() -> None:
    with pytest.raises(ValueError, match="invalid message of 3 bytes; expected xla"):
        descriptors.messages().parse("xla.ifrt.proxy.IfrtRequest", b"\xff\xff\xff")


def test_a_library_without_descriptors(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    # Looks like the beginning of one, and is cut off.
    library.write_bytes(bytes(1000) + b"\x0a\x0bxla/a.proto\x12\xff\xff")
    with pytest.raises(DescriptorError, match="not supported by pw-proxy"):
        descriptors.find(library)
