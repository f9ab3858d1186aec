"""Server of two hosts in this process, which counts what it sends to workers."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
from pathlib import Path

import jax

from pathways.proxy import serve
from pathways.runtime.clusters.connect import start_session
from pathways.runtime.hosts.launch.launcher_choice import settings_of
from pathways.runtime.hosts.launch.settings import Island
from pathways.runtime.proxy.hosted.hosts_backend import HostsBackend

WORK = Path(__file__).with_name("_proxy_work.py")


def messages() -> dict[str, float]:
    """Returns the number of messages to each worker in 70 steps of training, without those that load."""
    jax.config.update("jax_platforms", "cpu")
    session = start_session(settings_of(None, islands=[Island(2, 4)]))
    sent: collections.Counter[int] = collections.Counter()
    with serve(backend=HostsBackend(session)) as server:
        for host in session.hosts:
            send = host.steps.send_frames

            def count(*frames: bytes, index: int = host.index, send: object = send) -> None:
                sent[index] += 1
                send(*frames)  # type: ignore[operator]

            host.steps.send_frames = count  # type: ignore[method-assign]
        with subprocess.Popen(
            [sys.executable, str(WORK), "seventy_steps"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | server.environment,
        ) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            while client.stdout.readline() != "compiled\n":
                client.stdin.write("\n")
                client.stdin.flush()
            before = sent[0]
            client.communicate("\n")
            counted = sent[0] - before
    return {"messages": counted}
