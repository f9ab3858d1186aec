"""Metrics of snapshots, as Prometheus reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from status_samples import client, snapshot

from pathways.runtime.metrics.exposition import expose

USED = {("ann", "island0"): 1.5, ("ann", "island1"): 0.5, ("bob", "island0"): 0.25}


def samples(**fields):
    body, content_type = expose(snapshot(60, USED, **fields), 0.25, "")
    assert content_type.startswith("text/plain")
    families = text_string_to_metric_families(body.decode())
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def test_metrics_of_clients_are_sums_over_islands_and_programs():
    found = samples(clients=(client("ann"),))
    assert found["pathways_steps_total", ("client", "ann")] == 10
    assert found["pathways_device_seconds_total", ("client", "ann")] == 2.0
    assert found["pathways_held_bytes", ("client", "ann")] == 2048
    assert found["pathways_waited_seconds_total", ("client", "ann"), ("reason", "share")] == 1.0
    # It has left, and its counters stay.
    assert found["pathways_device_seconds_total", ("client", "bob")] == 0.25
    assert found["pathways_clients",] == 1
    assert found["pathways_queued_steps",] == 2
    assert found["pathways_client_queued_steps", ("client", "ann")] == 2
    assert found["pathways_snapshot_age_seconds",] == 0.25


def test_islands_that_do_not_run_are_not_up():
    found = samples(states=("running", "restarting", "leaving"))
    assert [found["pathways_island_up", ("island", f"island{n}")] for n in range(3)] == [1, 0, 0]
    assert found["pathways_island_losses_total", ("island", "island1")] == 1


def test_a_reader_may_ask_for_the_format_of_openmetrics():
    body, content_type = expose(snapshot(60), 0.0, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("file", ["docs/cluster/grafana.json", "docs/service.md"])
def test_the_manual_and_the_dashboard_name_metrics_that_exist(file):
    text = (Path(__file__).parents[3] / file).read_text()
    named = set(re.findall(r"\bpathways_\w+", text)) - {"pathways_lab"}
    found = {name for name, *_ in samples(clients=(client("ann"),))}
    assert named <= found
    assert len(named) >= 9
