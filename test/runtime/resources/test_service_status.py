"""Status of a service, as tables and as messages."""

from __future__ import annotations

import dataclasses

import pytest

from pathways.runtime.hosts.protocol.frames import HEADER_BYTES, encode
from pathways.runtime.resources.status import (
    ClientStatus,
    IslandStatus,
    ServiceStatus,
    SharedHostStatus,
    SliceStatus,
)
from pathways.runtime.resources.tables import age
from pathways.runtime.service.protocol.admin import StatusReply, decode_for_admin

LOST = "host 1 (island1) is lost: its process has ended (killed by signal 9)"
"""A problem of an island."""

STATUS = ServiceStatus(
    77,
    (
        IslandStatus(
            "island0",
            "running",
            (SharedHostStatus(0, 78, 3, 4096, "box", "10.0.0.6", since=1_000.0),),
            devices=4,
            free_memory=15 << 30,
        ),
        IslandStatus(
            "island1",
            "restarting",
            (SharedHostStatus(1, 79, None, None, "rack", "10.0.0.7", since=11_700.0),),
            devices=4,
            losses=2,
            problem=LOST,
        ),
    ),
    (
        ClientStatus(
            *("ann", 2.0, 12, 1, 0.0125, 3, 4096),
            *("ann", "desk", 4711, "10.0.0.8"),
            since=11_740.0,
            islands=("island0",),
            slices=(SliceStatus("s0", "island0", (0, 1, 3), "f"),),
        ),
        ClientStatus("bo", 1.0, 0, 0, 0.0, 0, 0, address="this machine", since=11_800.0),
    ),
    since=940.0,
    time=11_800.0,
)


def test_service_status_has_tables():
    """A client that is just connected has not sent its process yet."""
    assert str(STATUS).splitlines() == [
        "service: process 77, for 3 h",
        "islands",
        "  island   state       devices  free memory  losses",
        "  island0  running     4        15 GiB       0",
        "  island1  restarting  4        -            2",
        "hosts",
        "  host  island   machine  address   process  since  arrays  bytes",
        "  0     island0  box      10.0.0.6  78       3 h    3       4 KiB",
        "  1     island1  rack     10.0.0.7  79       1 min  ?       ?",
        "clients",
        "  client  weight  steps done  queued  device time  arrays  bytes  since  from",
        "  ann     2       12          1       12.5 ms      3       4 KiB  1 min  ann@desk, 4711",
        "  bo      1       0           0       0 s          0       0 B    0 s    -",
        "slices",
        "  client  slice  island   devices",
        "  ann     s0     island0  0-1, 3",
        f"island1: {LOST}",
    ]
    assert str(dataclasses.replace(STATUS, clients=())).endswith("\nno clients")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (0.9, "0 s"), (59.9, "59 s"), (60, "1 min"), (7_199, "1 h"), (200_000, "2 d")],
)
def test_age_is_rounded_down(seconds, text):
    assert age(seconds) == text


def test_service_status_is_decoded_as_encoded():
    assert decode_for_admin(encode(StatusReply(STATUS))[HEADER_BYTES:]) == StatusReply(STATUS)
