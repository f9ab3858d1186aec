"""The process of a service, which `pw-cluster up` starts; see `runtime.service.daemon`."""

from __future__ import annotations

import sys
from typing import Any

from pathways.runtime.clusters.starter_choice import starter_of
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.resilience.snapshots.run_names import remove_all_client_runs
from pathways.runtime.service import daemon
from pathways.runtime.service.service import Service


def make_service(settings: Settings, **options: Any) -> Service:
    """Returns a service with its workers; see `Service` for the options."""
    return Service(settings, starter_of(settings), at_end=remove_all_client_runs, **options)


if __name__ == "__main__":
    sys.exit(daemon.main(sys.argv[1:], make_service))
