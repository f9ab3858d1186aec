"""What controllers leave behind that were killed while workers started."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from pathways.runtime.hosts.launch.listening import remove_left


def test_remove_left_removes_folders_without_listeners():
    # Paths of sockets are short.
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
