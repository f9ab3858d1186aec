"""Starter of workers that the user's settings request."""

from __future__ import annotations

from pathways.runtime.hosts.cluster.starter import Starter
from pathways.runtime.hosts.launch.join_launcher import JoinLauncher
from pathways.runtime.hosts.launch.launcher_choice import launcher_of
from pathways.runtime.hosts.launch.settings import Settings
from pathways.runtime.resilience.spares.spare_pool import SparePool


def starter_of(settings: Settings) -> Starter:
    """Returns a starter with the launcher and the spares of the settings; close it if workers do not start.

    Raises:
      HostError: the launcher fails, for example because a port is taken.
      OSError: the file with a secret cannot be read.
      ValueError: other users can read that file, or it is too short.
    """
    spares = SparePool(settings.spares)
    try:
        launcher = launcher_of(settings, spares)
    except BaseException:
        spares.close()
        raise
    secret = launcher.secret if isinstance(launcher, JoinLauncher) else None
    return Starter(settings, launcher, secret, spares)
