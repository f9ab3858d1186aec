"""Status of a service, as tables and as messages."""

from __future__ import annotations

import dataclasses

from pathways.runtime.hosts.protocol.frames import HEADER_BYTES, encode
from pathways.runtime.resources.status import ClientStatus, IslandStatus, ServiceStatus, SharedHostStatus
from pathways.runtime.service.protocol.admin import StatusReply, decode_for_admin

STATUS = ServiceStatus(
    77,
    (
        IslandStatus("island0", "running", (SharedHostStatus(0, 78, 3, 4096),)),
        IslandStatus("island1", "starting anew", (SharedHostStatus(1, 79, None, None),)),
    ),
    (ClientStatus("ann", 2.0, 12, 1, 0.0125, 3, 4096),),
)


def test_service_status_has_tables():
    assert str(STATUS).splitlines() == [
        "service: process 77",
        "islands",
        "  island   host  process  arrays  bytes  state",
        "  island0  0     78       3       4 KiB  running",
        "  island1  1     79       ?       ?      starting anew",
        "clients",
        "  client  weight  steps done  queued  device time  arrays  bytes",
        "  ann     2       12          1       12.5 ms      3       4 KiB",
    ]
    assert str(dataclasses.replace(STATUS, clients=())).endswith("\nno clients")


def test_service_status_is_decoded_as_encoded():
    assert decode_for_admin(encode(StatusReply(STATUS))[HEADER_BYTES:]) == StatusReply(STATUS)
