"""The process of a service, which `pw-cluster up` starts; see `runtime.service.daemon`."""

from __future__ import annotations

import functools
import sys

from pathways.runtime.resilience.snapshots.run_names import remove_all_client_runs
from pathways.runtime.service import daemon
from pathways.runtime.service.service import Service

if __name__ == "__main__":
    sys.exit(daemon.main(sys.argv[1:], functools.partial(Service, at_end=remove_all_client_runs)))
