"""Names of this machine and this process in a cluster."""

from __future__ import annotations

import os
from pathlib import Path


def this_machine() -> str:
    """Returns a name of this machine, which changes when it restarts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")


def this_process() -> str:
    """Returns a name of this process, which none on another machine has."""
    return f"{this_machine()}-{os.getpid()}"
