"""Histories of simulated clusters: actions and faults at given times, and the invariants that must hold."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

from simulated_clients import ALONE, SimulatedClients, verdict
from simulated_cluster import ClusterShape, SimulatedCluster
from simulated_messages import SimulatedProgram
from simulated_sessions import SimulatedSessions

from pathways.runtime.control.gang import Dead, Drained, Running
from pathways.runtime.control.records.events import (
    GangKey,
    HostLost,
    LeaveRequested,
    PeerUnreachable,
    ReplyReceived,
    ReturnRequested,
)
from pathways.runtime.control.records.reports import HostReport

SECONDS = 8.0
"""Seconds within which all acts of a history begin."""

_UNREACHED = re.compile(r"host (\d+) \(island\d+\) is lost: host (\d+) \(island\d+\) does not reach it")

PATIENCE = 120.0
"""Seconds after the last act within which everything has to end."""


@dataclasses.dataclass(frozen=True)
class Act:
    """Action of a client, or fault.

    Attributes:
      at: when it happens, in seconds.
      what: its name, one of `ACTS`.
      on: numbers that choose its targets.
      seconds: how long it lasts.
    """

    at: float
    what: str
    on: tuple[int, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        seconds = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.at:6.2f} {self.what} {' '.join(map(str, self.on))}{seconds}"


@dataclasses.dataclass(frozen=True)
class History:
    """Acts on a cluster, ordered by time.

    Attributes:
      shape: the cluster.
      acts: the acts, in order.
      is_calm: whether it has no faults besides signals to hosts to leave.
    """

    shape: ClusterShape
    acts: tuple[Act, ...]
    is_calm: bool = False


class HistoryPlayer:
    """Player of a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.cluster = SimulatedCluster(history.shape)
        count = history.shape.sessions
        self.clients = SimulatedSessions(self.cluster, count) if count else SimulatedClients(self.cluster)

    def play(self) -> None:
        """Plays the history.

        Raises:
          AssertionError: an invariant does not hold.
        """
        time = self.cluster.time
        for act in self.history.acts:
            self._advance_to(act.at)
            while self.cluster.is_asleep() and act.what in _OF_USERS:
                self._advance_to(time.now + 0.1)
            ACTS[act.what](self, act)
            self.clients.resume_ready()
        end = max([act.at + act.seconds for act in self.history.acts], default=0.0)
        self._advance_to(min(end, time.now + SECONDS))
        deadline = time.now + PATIENCE
        while busy := self._busy():
            assert time.now < deadline, f"it has not come to an end: {busy}"
            while self.clients.held:
                self.clients.drop(0)
            self._advance_to(time.now + 0.3)
        self._check()

    def _advance_to(self, moment: float) -> None:
        time = self.cluster.time
        while time._heap and time._heap[0][0] <= moment:
            time.step()
            if self.cluster.has_changed:
                self.clients.resume_ready()
        time.run_until(moment)

    def _busy(self) -> str:
        """Returns what is still pending; empty if all has ended."""
        if self.clients.held:
            return "arrays are held"
        if self.clients.count():
            return f"{self.clients.count()} clients wait"
        for gang in self.cluster.core.gangs:
            if not isinstance(gang.state, Running | Dead | Drained):
                return f"{gang} is {gang.state}"
            if isinstance(gang.state, Running):
                for worker in self.cluster.of_gang[gang.key]:
                    if not worker.is_alive or worker.is_stopped:
                        return f"{worker} is dead or stopped, which the core has not noticed"
                    if not worker.is_idle() or worker.store:
                        return f"{worker} is busy, or has arrays {sorted(worker.store)}"
                    if kept := [key for key in worker.offers if not key[2].is_alive]:
                        return f"{worker} keeps {kept} for workers that have exited"
        # A spoiled step is an error long before it is done.
        if len(self.cluster.core.steps):
            return "steps are not done"
        if len(self.cluster.core.replies):
            return "requests are not answered"
        return ""

    def _check(self) -> None:
        """Checks the invariants of the end."""
        core = self.cluster.core
        assert not core._subjects, "requests for reports are held"
        for step, shown in self.clients.verdicts.items():
            assert step.is_done(), f"{step} has not ended"
            assert shown == verdict(step), f"{step} was {shown}, and is {verdict(step)}"
        for gang in core.gangs:
            assert gang.window.blocker() is None, f"the window of {gang} is full"
            assert isinstance(gang.state, Dead | Drained) or not gang.unused.take_all(), (
                f"frees of {gang} are held"
            )
        if isinstance(self.clients, SimulatedSessions):
            self.clients.check_end()
        self._check_losses()
        self._check_starts()

    def _check_losses(self) -> None:
        """Checks that hosts reported lost are lost, and for that reason."""
        for _, text in self.cluster.logged:
            if "is lost: its process has ended" in text:
                how = text.partition("its process has ended (")[2].partition(")")[0]
                assert how in self.cluster.ended_how.values(), text
            if named := _UNREACHED.search(text):
                # The report of one host alone never suffices.
                pair = frozenset(map(int, named.groups()))
                assert pair in self.cluster.network.were_cut, text
            # A worker must not be blamed for values that a lost host did not send.
            assert not re.search(r"failed there: host \d+ is lost", text), text
            # Nor an island for a failure that other hosts do not depend on.
            assert not re.search(rf"is lost: step \d+ of program {ALONE} failed there", text), text
            if self.history.is_calm:
                assert "is lost" not in text, text

    def _check_starts(self) -> None:
        """Checks that no island is given up too early, nor retried for too long."""
        seconds = self.history.shape.limits.restart_seconds
        for lost, gave_up in self.cluster.gave_up:
            assert seconds - 2.5 < gave_up - lost < seconds + 20.0, f"given up after {gave_up - lost:.1f} s"
        for gang in self.cluster.core.gangs:
            if isinstance(gang.state, Dead) and not self.cluster.is_closed:
                why = gang.state.failure.text
                assert "cannot be restarted" in why or "is not restarted" in why, why


def _run(player: HistoryPlayer, act: Act) -> None:
    salt, outputs, picks, islands = act.on[0], act.on[1], act.on[3 : 3 + act.on[2]], act.on[3 + act.on[2] :]
    count = len(player.cluster.shape.islands)
    route = [islands[0] % count]
    for island in islands[1:]:
        if island % count != route[-1]:
            route.append(island % count)
    # A service has no programs of single hosts.
    alone = None
    if salt % 4 == 0 and len(route) == 1 and not player.history.shape.sessions:
        alone = salt // 4 % player.cluster.shape.islands[route[0]]
    player.clients.start(player.clients.run(SimulatedProgram(salt, tuple(route), outputs, alone), picks))


def _call(player: HistoryPlayer, act: Act) -> None:
    player.clients.start(player.clients.call(act.on[0], act.on[1], act.on[2:], act.seconds))


def _fetch(player: HistoryPlayer, act: Act) -> None:
    player.clients.start(player.clients.fetch(act.on[0], by_all=bool(act.on[1] % 2)))


def _drop(player: HistoryPlayer, act: Act) -> None:
    player.clients.drop(act.on[0])


def _leave_session(player: HistoryPlayer, act: Act) -> None:
    if isinstance(player.clients, SimulatedSessions):
        player.clients.leave(act.on[0])


def _request_status(player: HistoryPlayer, act: Act) -> None:
    player.clients.start(player.clients.request_status())


def _kill(player: HistoryPlayer, act: Act) -> None:
    _worker(player, act).exit("killed by signal 9")


def _stop(player: HistoryPlayer, act: Act) -> None:
    worker = _worker(player, act)
    worker.stop()
    player.cluster.time.after(act.seconds, worker.wake)


def _cut_off(player: HistoryPlayer, act: Act) -> None:
    player.cluster.cut_off(_worker(player, act).host, act.seconds)


def _cut_peers(player: HistoryPlayer, act: Act) -> None:
    count = len(player.cluster.workers)
    player.cluster.cut_peers(act.on[0] % count, act.on[1] % count, act.seconds)


def _isolate(player: HistoryPlayer, act: Act) -> None:
    player.cluster.isolate(_worker(player, act).host, act.seconds)


def _report_falsely(player: HistoryPlayer, act: Act) -> None:
    player.cluster.report_falsely(_worker(player, act).host, act.on[1] % len(player.cluster.workers))


def _leave(player: HistoryPlayer, act: Act) -> None:
    player.cluster.request_exit(_worker(player, act).host)


def _drain(player: HistoryPlayer, act: Act) -> None:
    if isinstance(player.clients, SimulatedSessions):
        player.clients.drain(act.on[0], act.seconds)


def _return(player: HistoryPlayer, act: Act) -> None:
    gang = player.cluster.core.gangs[act.on[0] % len(player.history.shape.islands)]
    player.cluster.handle(ReturnRequested(gang.key))


def _fail(player: HistoryPlayer, act: Act) -> None:
    _worker(player, act).fails.append("single" if act.on[1] % 3 == 0 else "whole")


def _slow(player: HistoryPlayer, act: Act) -> None:
    _worker(player, act).pace += act.seconds


def _hang(player: HistoryPlayer, act: Act) -> None:
    _worker(player, act).pace = 1e6


def _fail_start(player: HistoryPlayer, act: Act) -> None:
    island = act.on[0] % len(player.cluster.shape.islands)
    player.cluster.failing_starts[island] = 1 + act.on[1] % 5


def _join(player: HistoryPlayer, act: Act) -> None:
    player.cluster.join(act.on[0])


def _sleep(player: HistoryPlayer, act: Act) -> None:
    player.cluster.sleep(act.seconds)


def _close(player: HistoryPlayer, act: Act) -> None:
    player.cluster.close()


def _late(player: HistoryPlayer, act: Act) -> None:
    """Sends messages that arrive too late: about earlier gangs, and replies to completed requests."""
    cluster = player.cluster
    host = _worker(player, act).host
    key = cluster.gang_of(cluster.workers[host]).key
    if cluster.core.replies.get(act.on[1] % 50) is None:
        cluster.handle(ReplyReceived(host, act.on[1] % 50, HostReport(0, -1, (), ())))
    for start in range(key.start):
        old = GangKey(key.island, start)
        cluster.handle(HostLost(old, host, "its process has ended (of a test)"))
        cluster.handle(LeaveRequested(old, host))
        other = (host + 1) % len(cluster.workers)
        cluster.handle(PeerUnreachable(key, host, old, other, "late"))
        cluster.handle(PeerUnreachable(old, host, key, other, "late"))


def _worker(player: HistoryPlayer, act: Act):
    workers = player.cluster.workers
    return workers[act.on[0] % len(workers)]


ACTS: Mapping[str, Callable[[HistoryPlayer, Act], None]] = {
    "run": _run,
    "call": _call,
    "fetch": _fetch,
    "drop": _drop,
    "status": _request_status,
    "leave session": _leave_session,
    "kill": _kill,
    "stop": _stop,
    "cut off": _cut_off,
    "cut peers": _cut_peers,
    "isolate": _isolate,
    "false report": _report_falsely,
    "leave": _leave,
    "drain": _drain,
    "return": _return,
    "fail": _fail,
    "slow": _slow,
    "hang": _hang,
    "fail start": _fail_start,
    "join": _join,
    "sleep": _sleep,
    "close": _close,
    "late": _late,
}

_OF_USERS = {
    *("run", "call", "fetch", "drop", "status"),
    *("leave session", "join", "drain", "return", "close", "late"),
}
