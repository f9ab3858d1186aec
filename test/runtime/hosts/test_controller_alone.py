"""Imports of a controller: a process that only dispatches steps does not import JAX."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


def test_controller_does_not_import_jax():
    code = (
        "import sys, pathways.runtime.hosts.cluster.worker_cluster, pathways.runtime.service.service;"
        "import pathways.runtime.hosts.launch.child_launcher;"
        "sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
