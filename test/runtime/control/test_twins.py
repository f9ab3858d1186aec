"""States of clusters that tests with processes reach too, reached at once with the cores alone.

Comments name the files of those tests.
"""

from __future__ import annotations

import pytest
from simulated_clients import SimulatedClients, SimulatedHandle
from simulated_cluster import CHANNELS, ClusterShape, SimulatedCluster
from simulated_messages import SimulatedProgram

from pathways.runtime.control.core import Limits
from pathways.runtime.control.gang import Draining, Restarting, Running, Terminating
from pathways.runtime.control.records.errors import HostError
from pathways.runtime.control.records.events import GangClosed, HostLost, LeaveRequested, PeerUnreachable
from pathways.runtime.control.records.step import Step
from pathways.runtime.simulate.events import LinkQuality


class Twin:
    """Cluster in which nothing is slow, and its client.

    Args:
      islands: the number of hosts of each island.
      limits: see `Limits`.
    """

    def __init__(self, *islands: int, **limits: float) -> None:
        links = {channel: LinkQuality(0.001, 0.002) for channel in CHANNELS}
        shape = ClusterShape(islands, Limits(**{"heartbeat": 2.0, **limits}), links)
        self.cluster = SimulatedCluster(shape)
        self.clients = SimulatedClients(self.cluster)
        self.core = self.cluster.core
        self._salt = 0

    def run(self, *route: int) -> list[SimulatedHandle]:
        """Issues a step that goes from island to island; returns an array of each, in their order."""
        before = len(self.clients.held)
        self._salt += 1
        self.clients.start(self.clients.run(SimulatedProgram(self._salt, route, 1), ()))
        return self.clients.held[before:]

    def drop(self, *handles: SimulatedHandle) -> None:
        """Frees arrays."""
        for handle in handles:
            self.clients.drop(self.clients.held.index(handle))

    def advance(self, seconds: float = 1.0) -> None:
        """Advances the time."""
        until = self.cluster.time.now + seconds
        while self.cluster.time.now < until:
            self.cluster.time.run_until(min(until, self.cluster.time.now + 0.01))
            self.clients.resume_ready()

    def logged(self, *words: str) -> list[str]:
        """Returns the log lines that contain some words."""
        return [text for _, text in self.cluster.logged if all(word in text for word in words)]

    def refuses(self, *route: int) -> str:
        """Returns the error with which islands refuse a step."""
        outcomes = self.clients.outcomes.copy()
        assert self.run(*route) == []
        (kind,) = self.clients.outcomes - outcomes
        return kind.partition(": ")[2]


def error(handle: SimulatedHandle) -> str:
    """Returns the reason why an array is not available; empty if it is."""
    assert handle.step.is_settled(), "nobody knows yet"
    try:
        handle.step.check(handle.gang.hosts, handle.number)
        handle.gang.check()
    except HostError as why:
        return str(why)
    return ""


# test_leaving.py


def test_leaving_worker_first_does_accepted_steps():
    """The island accepts no new steps, and exits when no array of it is held: no loss."""
    twin = Twin(1, 1, grace=60)
    kept = twin.run(0)
    slow = twin.cluster.workers[0]
    slow.pace = 3.0
    accepted = [handle for _ in range(3) for handle in twin.run(1, 0)]
    twin.cluster.request_exit(0)
    twin.advance(0.5)
    assert twin.refuses(0) == "HostLeavingError"
    assert twin.refuses(1, 0) == "HostLeavingError"
    (other,) = twin.run(1)
    twin.advance(4)
    assert [error(handle) for handle in [*kept, *accepted, other]] == [""] * 8
    assert isinstance(twin.core.gangs[0].state, Draining)
    twin.clients.start(twin.clients.fetch(0, by_all=True))
    twin.advance(1)
    assert twin.clients.outcomes["fetched"] == 1
    twin.drop(*kept, *accepted)
    twin.advance(5)
    assert twin.cluster.ended_how == {slow: "exit code 0"}
    assert twin.logged("island0", "lost") == []
    assert twin.logged("has left") == ["host 0 (island0) has left: its process received SIGTERM"]
    assert twin.logged("island0 is back")
    (again,) = twin.run(0)
    twin.advance()
    assert error(again) == ""


def test_leaving_is_no_loss_in_any_order_of_notices():
    """The exit may be noticed by another thread than the one that reads the notice to leave."""
    for seed in range(20):
        twin = Twin(1, grace=60)
        twin.cluster.chance.seed(seed)
        twin.cluster.request_exit(0)
        twin.advance(5)
        assert twin.logged("is lost") == []
        assert len(twin.logged("has left")) == 1


def test_leaving_of_an_island_is_that_of_all_its_hosts():
    """Any of them may receive the signal. Arrays held after the grace period are lost with the island."""
    twin = Twin(2, 1, grace=2)
    held, far = twin.run(0, 1)
    twin.advance()
    twin.cluster.request_exit(1)
    twin.advance(0.5)
    assert twin.refuses(0, 1) == "HostLeavingError"
    assert error(held) == ""
    twin.advance(5)
    assert [*twin.cluster.ended_how.values()] == ["exit code 0"] * 2
    assert "host 1 (island0) has left" in error(held)
    assert error(far) == ""
    assert twin.run(0, 1)


def test_leaving_ends_a_step_after_the_grace_time():
    twin = Twin(1, grace=1)
    twin.cluster.workers[0].pace = 100.0
    (endless,) = twin.run(0)
    twin.cluster.request_exit(0)
    twin.advance(5)
    assert "has left" in error(endless)
    assert f"was not done with step {endless.step.number} of program f after 1 seconds" in error(endless)


def test_leaving_fails_reads_at_the_latest_when_the_worker_has_ended():
    """A read fails at the latest when the worker has exited."""
    twin = Twin(1, grace=0)
    twin.run(0)
    twin.advance()
    twin.cluster.workers[0].stop()
    gang = twin.core.gangs[0]
    twin.cluster.handle(LeaveRequested(gang.key, 0))
    twin.advance(0.2)
    assert isinstance(gang.state, Terminating)
    with pytest.raises(HostError, match="is leaving"):
        gang.check_open()
    twin.clients.start(twin.clients.fetch(0, by_all=True))
    twin.advance(4)
    assert twin.clients.outcomes["fetch: HostLostError"] == 1
    assert twin.logged("has left")


# test_islands.py


def test_islands_hide_results_of_a_launch_that_failed_on_one_host():
    """The other host mistakes the first's next launch for this one: its results must not be visible."""
    twin = Twin(2, 1, ahead=9)
    kept = twin.run(0)
    twin.advance()
    assert error(kept[0]) == ""
    twin.cluster.workers[1].fails.append("whole")
    twin.cluster.cut_off(1, 1.5, hears=True)
    later = [handle for _ in range(3) for route in ([0], [0, 1], [1]) for handle in twin.run(*route)]
    twin.advance()
    # The other hosts report no failure.
    assert all(handle.step.is_done([0, 2]) for handle in later[:3])
    assert not any(handle.step.is_settled() for handle in later)
    twin.advance(4)
    for handle in [*later, *kept]:
        assert "host 1 (island0) is lost: step" in error(handle)
        assert "of program f failed there: out of memory" in error(handle)
    assert [gang.key.start for gang in twin.core.gangs] == [1, 0]


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_islands_with_killed_or_stopped_hosts_come_back(victim: int, how: str):
    """The island ends as a whole and comes back; others lose only the values that they were to receive."""
    twin = Twin(2, 1)
    kept = [*twin.run(0), *twin.run(1)]
    twin.advance()
    running = twin.run(1, 0, 1)
    worker = twin.cluster.workers[victim]
    if how == "killed":
        worker.exit("killed by signal 9")
    else:
        worker.stop()
    twin.advance(10)
    island = 0 if victim < 2 else 1
    assert "is lost" in error(kept[island])
    assert error(kept[0]) == "" or island == 0 or "failed there" in error(kept[0])
    if island == 0:
        assert error(kept[1]) == ""
    assert all("is lost" in error(handle) for handle in running)
    assert all(isinstance(gang.state, Running) for gang in twin.core.gangs)
    again = twin.run(1, 0, 1)
    twin.advance()
    assert [error(handle) for handle in again] == [""] * 2
    twin.drop(*twin.clients.held)
    twin.advance()
    assert not any(other.store for other in twin.cluster.workers.values())
    assert not any(other.offers for other in twin.cluster.workers.values())


def test_islands_cut_from_each_other_both_end():
    """Both answer the controller, and neither learns that the other is lost: both end, and come back."""
    twin = Twin(1, 1, 1)
    (kept, far) = twin.run(1, 2)
    twin.advance()
    twin.cluster.cut_peers(0, 1, 9.0)
    lost = twin.run(0, 1)
    twin.advance(2.7)
    # A waiting client gets an error before it is decided which host ends.
    assert all(handle.step.has_cut_hosts(handle.gang.hosts) for handle in lost)
    with pytest.raises(
        HostError, match=r"host \d \(island\d\) and host \d \(island\d\) do not reach each other"
    ):
        lost[0].step.check()
    assert twin.logged("is lost") == []
    twin.advance(4)
    lines = twin.logged("is lost")
    assert [text[:6] for text in sorted(lines)] == ["host 0", "host 1"]
    assert all("does not reach it: timed out" in text for text in lines)
    assert all("reach" in error(handle) for handle in lost)
    assert error(far) == ""
    assert "does not reach it" in error(kept)
    twin.advance(6)
    again = twin.run(0, 1)
    twin.advance()
    assert [error(handle) for handle in again] == ["", ""]


def test_islands_end_a_machine_that_no_other_reaches():
    """The controller reaches all: the host that most others report ends alone."""
    twin = Twin(1, 1, 2)
    kept = [handle for island in range(3) for handle in twin.run(island)]
    twin.advance()
    twin.cluster.isolate(1, 9.0)
    twin.advance(6)
    (line,) = twin.logged("is lost")
    assert line.startswith("host 1 (island1) is lost: host ")
    assert [error(handle) == "" for handle in kept] == [True, False, True]


def test_islands_end_no_host_for_one_report():
    """The reported host goes on. The reporter may wait for data that never comes, and ends unconfirmed."""
    twin = Twin(1, 1)
    kept = [*twin.run(0), *twin.run(1)]
    twin.advance()
    twin.cluster.report_falsely(0, 1)
    twin.advance(2.5)
    assert twin.logged("is lost") == []
    twin.advance(2)
    assert twin.logged("is lost") == [
        "host 0 (island0) is lost: it does not reach host 1 (island1), which does not confirm it: of a test"
    ]
    assert [error(handle) == "" for handle in kept] == [False, True]


def test_islands_that_end_hide_results_of_a_failed_launch():
    """Results of the other hosts are as wrong as while the island is running."""
    twin = Twin(2, 1, grace=0.2)
    kept = twin.run(0)
    twin.advance()
    for host in (0, 1):
        twin.cluster.workers[host].pace = 100.0
    later = [handle for _ in range(2) for handle in twin.run(0)]
    gang = twin.core.gangs[0]
    twin.cluster.workers[0].stop()
    twin.cluster.handle(LeaveRequested(gang.key, 0))
    twin.advance(0.5)
    assert isinstance(gang.state, Terminating)
    now = twin.cluster.time.now
    twin.cluster.carry_out("failed", twin.core.fail(gang, 1, later[0].step.number, "out of memory", {}, now))
    twin.advance(0.3)
    assert isinstance(gang.state, Restarting)
    assert all("has left" in error(handle) for handle in [*later, *kept])


def test_islands_that_are_lost_report_no_host():
    twin = Twin(1, 1)
    first, second = (gang.key for gang in twin.core.gangs)
    twin.cluster.handle(HostLost(first, 0, "of a test"))
    twin.cluster.handle(PeerUnreachable(first, 0, second, 1, "its connection has ended"))
    assert isinstance(twin.core.gangs[1].state, Running)


def test_islands_refuse_or_lose_a_step_that_begins_at_their_loss():
    """Otherwise no host would answer for the step."""
    twin = Twin(1, 1)
    (issued, _) = twin.run(0, 1)
    twin.cluster.handle(HostLost(twin.core.gangs[0].key, 0, "of a test"))
    assert "host 0 (island0) is lost: of a test" in _checked(issued)
    with pytest.raises(HostError, match="of a test"):
        twin.core.issue(Step("f", 99, [0]), [twin.core.gangs[0]], [])
    # A client that issues a step waits for the replacement of the workers.
    assert twin.run(0) == []
    twin.advance(4)
    assert len(twin.core.steps.unfinished()) == 0
    assert twin.clients.outcomes["good"] == 1


def _checked(handle: SimulatedHandle) -> str:
    with pytest.raises(HostError) as raised:
        handle.step.check(handle.gang.hosts)
    return str(raised.value)


# test_hosts.py


def test_hosts_that_come_back_do_not_revive_lost_arrays():
    """An array is lost with its workers, also when their replacements go on."""
    twin = Twin(1)
    (lost,) = twin.run(0)
    twin.advance()
    twin.cluster.workers[0].exit("killed by signal 9")
    twin.advance(4)
    (new,) = twin.run(0)
    twin.advance()
    assert "host 0 (island0) is lost: its process has ended (killed by signal 9)" in error(lost)
    assert error(new) == ""
    twin.drop(lost)
    twin.advance()
    assert [*twin.cluster.workers[0].store] == [new.number]


def test_hosts_lost_again_and_again_are_given_up():
    """The other islands go on."""
    twin = Twin(1, 1)
    for _ in range(4):
        twin.cluster.workers[1].exit("killed by signal 9")
        twin.advance(4)
    assert twin.core.gangs[1].is_dead()
    assert twin.refuses(0, 1) == "HostLostError"
    (other,) = twin.run(0)
    twin.advance()
    assert error(other) == ""


def test_hosts_survive_a_stopped_controller():
    """Like after Ctrl-Z, no heartbeat has arrived for long, which is not the fault of the workers."""
    twin = Twin(1, 2)
    twin.advance()
    twin.cluster.sleep(60)
    twin.advance(62)
    assert twin.logged("is lost") == []
    twin.cluster.workers[1].stop()
    twin.advance(4)
    assert twin.logged("host 1 (island1) is lost: it has not responded for")


def test_hosts_that_hold_up_a_step_are_reported_and_ended():
    """The host that others wait for ends alone."""
    twin = Twin(1, 1, stall_report=1, step_deadline=2)
    (kept,) = twin.run(1)
    twin.advance()
    twin.cluster.workers[0].pace = 1e6
    lost = twin.run(0, 1)
    twin.advance(4)
    (reported, ended) = twin.logged("has made no progress for")
    assert reported.startswith(
        f"step {lost[0].step.number} of program f has made no progress for 1 seconds\n"
    )
    waits = "has waited for host 0 at 10.0.0.0:1 on channel c"
    assert f"host 0: has been issuing it for 1 s\n  host 1: {waits}" in reported
    assert "for 2 seconds" in ended
    assert twin.logged("is lost") == [
        f"host 0 (island0) is lost: step {lost[0].step.number} of program f made no progress in 2 seconds"
    ]
    assert all("made no progress in 2 seconds" in error(handle) for handle in lost)
    assert error(kept) == ""


def test_hosts_have_as_many_steps_in_flight_as_the_window_holds():
    """Only one island is full; the others go on."""
    twin = Twin(1, 1, ahead=3)
    twin.cluster.workers[0].pace = 1e6
    assert [len(twin.run(0)) for _ in range(5)] == [1, 1, 1, 0, 0]
    (other,) = twin.run(1)
    twin.advance()
    assert error(other) == ""
    twin.cluster.workers[0].exit("killed by signal 9")
    twin.advance(4)
    assert twin.clients.count() == 0


def test_hosts_go_on_after_a_failed_computation():
    """A failure ends no host."""
    twin = Twin(1, 1)
    twin.cluster.workers[0].fails.append("whole")
    lost = twin.run(0, 1)
    (kept,) = twin.run(1)
    twin.advance()
    assert "program f: host 0 (island0): out of memory" in error(lost[0])
    assert "program f: host 1 (island1): out of memory" in error(lost[1])
    assert error(kept) == ""
    assert twin.logged("is lost") == []


def test_hosts_end_with_the_controller():
    """Hosts exit in any state of their steps and islands."""
    for state in ("running", "lost", "leaving"):
        twin = Twin(1, 2)
        handles = twin.run(0, 1)
        if state == "lost":
            twin.cluster.workers[2].exit("killed by signal 9")
        elif state == "leaving":
            twin.cluster.request_exit(2)
        twin.advance(0.4)
        twin.cluster.close()
        twin.cluster.handle(GangClosed(twin.core.gangs[0].key, "is closed"))
        twin.advance(5)
        assert all(gang.is_dead() for gang in twin.core.gangs)
        assert all(error(handle) for handle in handles)
        assert not any(worker.is_alive for worker in twin.cluster.workers.values())
        assert len(twin.core.steps) == 0
