"""Snapshots as metrics in the formats of Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pathways.runtime.metrics.snapshots import Snapshot
from pathways.runtime.resources.accounts import WAITS, AccountRecord, summed


class _Snapshots(Collector):
    """Metrics of one snapshot."""

    def __init__(self, snapshot: Snapshot, age: float) -> None:
        self._snapshot = snapshot
        self._age = age

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics."""
        status = self._snapshot.status
        yield from _client_metrics(summed(self._snapshot.accounts, ("client",)))
        queued = sum(client.queued for client in status.clients)
        yield _gauge("pathways_queued_steps", "Steps that wait for their islands.", queued)
        of_clients = GaugeMetricFamily("pathways_client_queued_steps", "Waiting steps.", labels=["client"])
        for client in status.clients:
            of_clients.add_metric([client.name], client.queued)
        yield of_clients
        yield _gauge("pathways_clients", "Connected clients.", len(status.clients))
        up = GaugeMetricFamily("pathways_island_up", "1 while it accepts steps.", labels=["island"])
        losses = CounterMetricFamily("pathways_island_losses", "Losses of its workers.", labels=["island"])
        for island in status.islands:
            up.add_metric([island.name], float(island.state in ("running", "draining")))
            losses.add_metric([island.name], island.losses)
        yield up
        yield losses
        yield _gauge("pathways_start_time_seconds", "Start of the service, since the epoch.", status.since)
        yield _gauge("pathways_snapshot_age_seconds", "Age of the snapshot of these metrics.", self._age)


def _client_metrics(records: Sequence[AccountRecord]) -> Iterator[Metric]:
    steps = CounterMetricFamily("pathways_steps", "Steps that have ended.", labels=["client"])
    failures = CounterMetricFamily("pathways_failures", "Failures of steps on islands.", labels=["client"])
    seconds = CounterMetricFamily("pathways_device_seconds", "Time of steps on islands.", labels=["client"])
    moved = CounterMetricFamily("pathways_moved_bytes", "Bytes to islands and clients.", labels=["client"])
    waited = CounterMetricFamily(
        "pathways_waited_seconds", "Time for which its next step waited.", labels=["client", "reason"]
    )
    held = GaugeMetricFamily("pathways_held_bytes", "Bytes of its arrays.", labels=["client"])
    for record in records:
        name, use = record.client, record.use
        steps.add_metric([name], use.last)
        failures.add_metric([name], use.failures)
        seconds.add_metric([name], use.device_seconds)
        moved.add_metric([name], use.moved_bytes)
        held.add_metric([name], record.held_bytes)
        for why in WAITS:
            waited.add_metric([name, why], use.waited.get(why, 0.0))
    yield from (steps, failures, seconds, moved, waited, held)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def expose(snapshot: Snapshot, age: float, accept: str) -> tuple[bytes, str]:
    """Returns the metrics of a snapshot, and their content type.

    Args:
      age: the age of the snapshot, in seconds.
      accept: the formats that the reader accepts, as in the header of its request.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshots(snapshot, age))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
