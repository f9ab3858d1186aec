"""Sockets of controllers, and the removal of those of controllers that were killed during a start."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from pathways.runtime.hosts.launch.launcher_records import Endpoints
from pathways.runtime.hosts.launch.sockets import controller_socket, remove_left


@pytest.mark.parametrize("advertise", [None, "controller.example"])
def test_controller_socket_has_the_advertised_address(advertise):
    """The address may be that of a machine in front of this one; the port is its own."""
    with controller_socket(Endpoints(bind="127.0.0.1", advertise=advertise)) as (server, address):
        assert address == (advertise or "127.0.0.1", server.getsockname()[1])


def test_remove_left_removes_folders_without_listeners():
    # In /tmp, because paths of sockets are limited to some 100 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        sockets = {name: socket.socket(socket.AF_UNIX) for name in ("old", "new", "used")}
        for name, sock in sockets.items():
            path = Path(place, f"pathways-{name}", "controller")
            path.parent.mkdir()
            sock.bind(str(path))
            if name == "used":
                sock.listen()
            if name != "new":
                os.utime(path, (0, 0))
        Path(place, "pathways-other").mkdir()
        remove_left(Path(place))
        left = sorted(path.name for path in Path(place).iterdir())
        for sock in sockets.values():
            sock.close()
    assert left == ["pathways-new", "pathways-other", "pathways-used"]
