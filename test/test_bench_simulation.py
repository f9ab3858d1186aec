"""A simulated cluster: what follows from its costs alone, and what holds for all clusters."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathways.runtime.simulate.events import SimulatedTime

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from _simulated.costs import ControlCosts, CostsError, read_costs
from _simulated.figures import HIDDEN, longest, smallest_hidden, smallest_served, used_alone, used_together
from _simulated.fleet import FleetShape
from _simulated.processor import Processor
from _simulated.service import ClientModel, ServiceModel

COSTS = ControlCosts(30e-6, 15e-6, per_worker=60e-6, per_client=60e-6, per_handed_on=15e-6, net=25e-6)

micro = st.floats(0, 1e-4)
costs = st.builds(ControlCosts, micro, micro, micro, micro, micro, micro, micro)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3)), min_size=1))
@settings(deadline=None)
def test_processor_does_one_job_after_the_other(jobs):
    time, ends = SimulatedTime(), []
    processor = Processor(time)
    for at, seconds in jobs:

        def job(began: float, seconds: float = seconds) -> float:
            ends.extend([began, began + seconds])
            return began + seconds

        processor.add_at(at, job)
    while time.step():
        pass
    free, expected = 0.0, []
    for at, seconds in sorted(jobs, key=lambda job: job[0]):
        expected += [max(free, at), free := max(free, at) + seconds]
    assert ends == pytest.approx(expected)
    assert processor.busy == pytest.approx(sum(seconds for _, seconds in jobs))


@pytest.mark.parametrize("hosts", [16, 64])
def test_smallest_hidden_is_the_work_of_control(hosts):
    shape = FleetShape([hosts])
    assert smallest_hidden(shape, COSTS) == pytest.approx(HIDDEN * (30e-6 + hosts * 15e-6), rel=0.02)


@pytest.mark.parametrize("shape", [FleetShape([4] * 8), FleetShape([4] * 8, heads=4)])
def test_smallest_hidden_grows_with_islands(shape):
    alone, islands = (smallest_hidden(shape, dataclasses.replace(COSTS, per_island=s)) for s in (0.0, 40e-6))
    assert islands - alone == pytest.approx(HIDDEN * 8 * 40e-6, rel=0.1)


@pytest.mark.parametrize("net", [0.0, 20e-6])
def test_smallest_hidden_is_nothing_where_control_is_free(net):
    assert smallest_hidden(FleetShape([4]), ControlCosts(0.0, 0.0, net=net)) < 4 * net + 1e-12


def test_smallest_served_for_one_client_is_that_of_a_controller():
    shape = FleetShape([16])
    assert smallest_served(shape, COSTS) == pytest.approx(smallest_hidden(shape, COSTS), rel=0.05)


def test_service_model_schedules_events_in_batches(monkeypatch):
    model = ServiceModel(FleetShape([1]), COSTS, [ClientModel((0,), 1e-3)] * 3)
    handled = []
    handle_all = model.scheduler.handle_all

    def noting(events, now):
        handled.append(len(events))
        return handle_all(events, now)

    monkeypatch.setattr(model.scheduler, "handle_all", noting)
    model.run(0.1)
    # All ask first at the same time.
    assert handled[0] == 3
    assert sum(handled) > 100


def test_used_alone_hides_nothing_with_one_step_in_flight():
    shape = FleetShape([16])
    # Until the last host has it, on its way there and back, and all answers but none of the next step.
    rest = 30e-6 + 16 * 15e-6 + 60e-6 + 2 * 25e-6
    usage = used_alone(shape, COSTS, 1e-3, ahead=1)
    assert usage.busy == pytest.approx(1e-3 / (1e-3 + rest), rel=0.01)


def test_fleet_heads_relieve_the_controller():
    flat, heads = (smallest_hidden(FleetShape([256], heads), COSTS) for heads in (None, 32))
    assert heads < flat / 6


@given(costs, st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(1, 4), st.floats(1e-5, 1e-3))
@settings(max_examples=20, deadline=None)
def test_fleet_heads_of_one_host_change_nothing(costs, hosts, ahead, seconds):
    one, none = (used_alone(FleetShape(hosts, heads), costs, seconds, ahead) for heads in (1, None))
    assert one.rate == pytest.approx(none.rate, rel=0.05)
    assert none.rate <= 1 / seconds * 1.01 + 1
    # No step takes longer than all that is done for it.
    assert none.rate >= 0.9 / (seconds + longest(FleetShape(hosts), costs))


@given(
    costs,
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.sampled_from([None, 2, 4]),
    st.booleans(),
    st.data(),
)
@settings(max_examples=20, deadline=None)
def test_service_model_serves_random_clients(costs, hosts, heads, is_joined, data):
    islands = st.lists(st.sampled_from(range(len(hosts))), min_size=1, unique=True).map(tuple)
    clients = data.draw(
        st.lists(st.builds(ClientModel, islands, st.floats(1e-4, 2e-3)), min_size=1, max_size=4)
    )
    model = ServiceModel(FleetShape(hosts, heads, is_joined), costs, clients)
    model.run(0.3)
    fleet = model.control.fleet
    for number, client in enumerate(clients):
        assert fleet.ended[number] > 0
        parts = fleet.served[number] / client.seconds
        # Parts of steps that other islands have not ended.
        begun = parts - fleet.ended[number] * len(client.islands)
        assert -1e-6 < begun < 4 * len(client.islands)
    assert max(fleet.busy) <= 0.3 * (1 + 1e-9)


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 2, 4, 8)])
def test_used_together_gives_shares_and_leaves_nothing_idle(weights):
    clients = [ClientModel((0,), 0.33e-3, weight) for weight in weights]
    usage = used_together(FleetShape([4]), COSTS, clients, 0.5)
    assert usage.busy >= 0.99
    assert usage.unfair <= 0.02


def test_control_costs_are_changed_by_name():
    changed = COSTS.changed("per_host=7.5us, net=2x")
    assert (changed.per_host, changed.net, changed.per_step) == pytest.approx((7.5e-6, 50e-6, 30e-6))
    assert COSTS.changed("net=2 X").net == pytest.approx(50e-6)


@pytest.mark.parametrize(
    ("what_if", "message"),
    [
        ("hosts=2x", "'hosts=2x': there is no cost 'hosts'; costs are per_step, per_host"),
        ("net", "'net': expected a cost and a time or a factor, such as net=20us or net=2x"),
        ("net=fast", "'net=fast': net: expected a number or a string"),
        ("net=20", "'net=20': net: is in time units"),
        ("net=2x,net=3x", "'net=3x': net is changed twice"),
    ],
)
def test_control_costs_name_wrong_changes(what_if, message):
    with pytest.raises(CostsError) as error:
        COSTS.changed(what_if)
    assert str(error.value).startswith(message)


def test_read_costs_checks_its_file():
    entry = (
        b'{"command": "", "date": "", "machine": "", "load": 0, "costs": {"x": {"seconds": %s, "what": ""}}}'
    )
    entry = b'{"control": %s}' % entry
    file = read_costs(b'{"benches": {"hosts": %s}}' % (entry % b"1e-6"), "costs.json")
    assert file.seconds("hosts", "x") == 1e-6
    with pytest.raises(CostsError, match="no 'y' of bench 'hosts'"):
        file.seconds("hosts", "y")
    with pytest.raises(CostsError, match="nothing of bench 'network'"):
        file.seconds("network", "x")
    for wrong in (b'"much"', b"-1", b"1e300"):
        with pytest.raises(CostsError, match=r"costs.json: benches\.hosts\.control"):
            read_costs(b'{"benches": {"hosts": %s}}' % (entry % wrong), "costs.json")
