"""The process of a service, which `pw-cluster up` starts; see `daemon.py`."""

from __future__ import annotations

import sys

from pathways.runtime.hosts.service import daemon
from pathways.runtime.hosts.service.service import Service

if __name__ == "__main__":
    sys.exit(daemon.main(sys.argv[1:], Service))
