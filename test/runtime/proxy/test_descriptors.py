"""Message classes, from the installed jaxlib."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.proxy.wire.descriptors import DescriptorError
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.code_store import CodeStore


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
    # The start of a descriptor, which is cut off.
    library.write_bytes(bytes(1000) + b"\x0a\x0bxla/a.proto\x12\xff\xff")
    with pytest.raises(DescriptorError, match="not supported by pw-proxy"):
        descriptors.find_stored(library, None)
    with pytest.raises(DescriptorError, match=r"none\.so does not exist"):
        descriptors.find_stored(tmp_path / "none.so", None)


def test_a_later_process_does_not_search_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, store = pjrt.shared_library(), CodeStore(tmp_path / "store", 1 << 30)
    found = descriptors.find_stored(library, store)
    monkeypatch.setattr(descriptors, "find", None)
    assert descriptors.find_stored(library, store) == found
    assert list(descriptors.find_stored(library, store)) == list(found)


def test_stored_descriptors_are_replaced_when_they_are_damaged_or_too_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, store = pjrt.shared_library(), CodeStore(tmp_path / "store", 1 << 30)
    found = descriptors.find_stored(library, store)
    (file,) = store.folder.iterdir()
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert descriptors.find_stored(library, store) == found
    assert file.read_bytes() == good
    # Another release of this server may need other messages of the same jaxlib.
    monkeypatch.setattr(descriptors, "ROOTS", ("xla/python/ifrt_proxy/common/types.proto",))
    assert len(descriptors.find_stored(library, store)) < len(found)
