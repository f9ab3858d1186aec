"""The controller's side: it tells workers what to run, and knows what became of it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pathways.runtime.hosts.answers import Answers
from pathways.runtime.hosts.describing import HostFacts, Questions, facts_of
from pathways.runtime.hosts.fetching import Fetched, Fetches
from pathways.runtime.hosts.frames import CHUNK, encode
from pathways.runtime.hosts.garbage import Unused
from pathways.runtime.hosts.host import Gang, HostError, HostProcess, Location
from pathways.runtime.hosts.hosted import HostedProgram, HostPart
from pathways.runtime.hosts.interrupts import Whole
from pathways.runtime.hosts.islands import Islands
from pathways.runtime.hosts.issued import IssuedSteps
from pathways.runtime.hosts.leaving import Leaves
from pathways.runtime.hosts.messages import (
    Cancel,
    Chunk,
    ClockTime,
    Describe,
    Described,
    Done,
    Failed,
    Fetch,
    Free,
    Leaving,
    Load,
    LoadDone,
    Lost,
    Message,
    MessageError,
    PeerLost,
    Ping,
    Pong,
    Put,
    Report,
    Run,
    RunTimes,
    TraceDone,
    TraceStarted,
    Unload,
)
from pathways.runtime.hosts.settings import Settings
from pathways.runtime.hosts.shards import cut
from pathways.runtime.hosts.stalls import Reports, Stalls
from pathways.runtime.hosts.starting import Starter
from pathways.runtime.hosts.step import Step
from pathways.runtime.hosts.tracing import HostTraces
from pathways.runtime.hosts.wire import Connection, ConnectionEnded
from pathways.runtime.resources import cluster as resources
from pathways.runtime.resources.status import HostStatus, StepStatus
from pathways.runtime.resources.threads import start_thread

_PAUSE = 0.5
"""The most seconds from one look at all workers to the next."""

_END_SECONDS = 0.1
"""How long a process may take to end behind its connections."""

_FREE_SECONDS = 0.05

log = logging.getLogger("pathways")


class Controller:
    """All workers of a cluster.

    Args:
      starter: starts the workers.
      settings: what the user says of them.

    Attributes:
      settings: what the user says of them.
      islands: the islands, with the workers that each has now.
      hosts: these workers.
      cluster: the devices of all islands.
      order: held from the look at the numbers of arrays until the step that takes them is issued, and while
        arrays are deleted: a worker would wait for ever for what it has freed. `run` waits under it until
        there is room.
      is_several: whether any island has several hosts, so that steps may be spoiled.
      asking: the same for numbers that are sent to fetch an array. Nobody waits under it.

    Raises:
      HostError: a worker does not start.
    """

    def __init__(self, starter: Starter, settings: Settings) -> None:
        self.settings = settings
        self.islands = Islands(starter, len(settings.islands))
        self.hosts = self.islands.hosts
        self.cluster = self.islands.cluster
        self.is_several = any(gang.is_several for gang in self.islands.gangs)
        self._next = 1
        # Handing a step to all its hosts is one thing to all threads: one order of steps everywhere.
        self.order = threading.RLock()
        self.asking = threading.Lock()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._issued = IssuedSteps(self.is_several)
        self._loading: dict[tuple[int, int], _Answer] = {}
        self._fetches = Fetches()
        self._answers = Answers(self.hosts, self._hear_some)
        self._unneeded: Unused[HostedProgram] = Unused()
        self.traces = HostTraces(self.hosts, self.tell_all)
        self._reports = Reports(self.hosts)
        self._stalls = Stalls(
            self.hosts,
            self._reports,
            self._issued.unfinished,
            self._lose,
            settings.stall_report,
            settings.step_deadline,
        )
        self._questions = Questions()
        self._leaves = Leaves(self._issued, self._reports, self._answers.poll, self._lose, settings.grace)
        for gang in self.islands.gangs:
            self._listen_to(gang)
        for work in (self._watch, self._free, self._look_for_stalls):
            self._start(work)

    def _listen_to(self, gang: Gang) -> None:
        for host in gang.hosts:
            host.arrays.place = functools.partial(self._fetches.place, host.index)
            for connection in (host.arrays, host.watch):
                self._start(self._listen, host, connection)

    def _attend(self, gang: Gang) -> None:
        """Hears workers that have been started anew."""
        for host in gang.hosts:
            host.heard = time.monotonic()
            self._answers.add(host)
            self.traces.attend(host)
        self._listen_to(gang)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        start_thread(functools.partial(work, *args), work.__name__.strip("_"))

    def close(self) -> None:
        """Ends all workers."""
        if self._closed.is_set():
            return
        self.traces.close()
        self._closed.set()
        for host in [*self.hosts]:
            # Not with a message, which a worker that is stopped would not take: it hears that this side is
            # gone.
            self._lose(host, "")
        self.islands.close()

    def leave(self) -> None:
        """Lets go of the workers in a process that was forked from the one that they belong to.

        Of the threads of that process none is here, and any lock may be held by one of them for ever.
        """
        self.order, self.asking = threading.RLock(), threading.Lock()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._answers.forget_threads()
        self._fetches.forget_threads()
        self._issued.forget_threads()
        self._closed.set()
        self.islands.leave()
        for host in self.hosts:
            error = f"{host} belongs to the process that this one was forked from"
            host.error = host.gang.error = error
            host.leave()
            for step in self._issued.unfinished():
                step.lose(host.index, error)

    def is_usable(self) -> bool:
        """Whether it is not closed, and all islands have workers, or will have new ones."""
        return not self._closed.is_set() and all(gang.fate is None for gang in self.islands.gangs)

    def is_whole(self) -> bool:
        """Whether no host is lost or leaves, and the cluster is not closed."""
        gangs = self.islands.gangs
        return not self._closed.is_set() and all(g.error is None and g.leaving is None for g in gangs)

    def tell_all(self, *messages: Message) -> None:
        """Sends messages to all hosts that are left, to all of them between the same two steps."""
        with self.order:
            for host in self.hosts:
                with contextlib.suppress(HostError):
                    self._send(host, *messages)

    def load(
        self,
        name: str,
        gangs: Sequence[Gang],
        parts: Mapping[int, HostPart],
        devices: Mapping[str, tuple[resources.Device, ...]],
        crossing: int = 0,
        inner: int = 0,
    ) -> HostedProgram:
        """Compiles the parts of a program on their hosts, all at the same time, and waits for all.

        Args:
          name: the name of the program.
          gangs: the workers of the islands that have a part.
          parts: what each island gets.
          devices: those of each slice.
          crossing: how many transfers between islands a run has, on all islands together.
          inner: how many within an island it has at most.

        Raises:
          HostError: one of them cannot; says which host and why.
        """
        number = self._number()
        # Nobody can guess what is sent under which number.
        base = secrets.randbelow(1 << 61)
        hosts = [host for gang in gangs for host in gang.hosts]
        answers = {host: _Answer() for host in hosts}
        with self._lock:
            self._loading.update(((host.index, number), answer) for host, answer in answers.items())
        loads = {
            gang: Load(
                number,
                name,
                part.module,
                part.declared_computations(),
                part.declared_constants(),
                gang.number,
                {slice: tuple(device.id for device in own) for slice, own in devices.items()},
                {slice: tuple(device.host.index for device in own) for slice, own in devices.items()},
                {host.index: host.ready.data_address for host in hosts},
                {host.index: host.ready.probe_address for host in hosts},
                base,
                crossing,
                crossing + inner,
                part.argument_names,
                part.weak_results,
            )
            for gang in gangs
            for part in [parts[gang.number]]
        }
        program = HostedProgram(
            number,
            name,
            tuple(gangs),
            {island: part.inputs for island, part in parts.items()},
            {island: part.outputs for island, part in parts.items()},
        )
        try:
            for gang, load in loads.items():
                for host in gang.hosts:
                    self._send(host, load)
            for host, answer in answers.items():
                self._answers.wait(answer.is_given)
                if answer.error is not None:
                    raise HostError(f"program {name}, host {host.index}: {answer.error}")
        except BaseException:
            # Others may have it.
            self.unload(program)
            raise
        return program

    def describe(self, program: HostedProgram, *, text: bool = False) -> HostFacts:
        """What XLA made of a program on its hosts, with the text of its modules or without.

        Raises:
          HostError: a host is gone.
        """
        request = self._questions.ask()
        with self._questions.expected([host.index for host in program.hosts], request):
            for host in program.hosts:
                self._speak(host, host.watch.send, Describe(request, program.number, text))
            # All hosts of an island that run a computation say the same of it.
            pieces = [self._questions.answer(host.index, request) for host in program.hosts]
        error = next((piece.error for said in pieces for piece in said if piece.error is not None), None)
        if error is not None:
            raise HostError(f"program {program.name}: {error}")
        return facts_of(pieces)

    def unload(self, program: HostedProgram) -> None:
        """Notes that nobody runs a program any more; may be called by finalizers."""
        self._unneeded.add(program)

    def put(self, value: np.ndarray[Any, Any], location: Location) -> int:
        """Sends an array to the hosts of a location; returns its number there.

        Raises:
          HostError: one of them is gone.
        """
        location.gang.check_open()
        value = location.part.of(value)
        number = self._number()
        try:
            for host in location.gang.hosts:
                shards, order = cut(value, location.placement, location.holders.get(host, ()))
                put = Put(number, value.shape, value.dtype.name, location.placement, order)
                self._speak(host, host.arrays.send, put)
                for n, shard in enumerate(shards):
                    raw = memoryview(np.ascontiguousarray(shard).reshape(-1).view(np.uint8))
                    for offset in range(0, len(raw), CHUNK):
                        piece = raw[offset : offset + CHUNK]
                        chunk = Chunk(number, n, offset, len(piece))
                        self._speak(host, host.arrays.send_with, chunk, piece)
        except BaseException:
            # Ctrl-C, such as while something large is sent.
            for host in location.gang.hosts:
                with contextlib.suppress(HostError):
                    self._speak(host, host.arrays.send, Free((number,)))
            raise
        return number

    def run(
        self,
        program: HostedProgram,
        arguments: Mapping[int, Sequence[int]],
        made: Sequence[Step | None] = (),
    ) -> Step:
        """Issues a step: one message to each host, to all of them before any answer.

        Args:
          program: the program.
          arguments: for each island the numbers of the arrays that its part takes.
          made: the steps that made these arrays.

        Returns:
          The step. The first array that a part makes has the number behind that of the step on its hosts, and
          others follow it.

        Raises:
          HostError: a host is gone.
        """
        with self.order:
            self._issued.make_room(self.settings.ahead, self._answers.wait)
            for gang in program.gangs:
                gang.check_open()
            number = self._number(1 + program.most_outputs)
            step = Step(program.name, number, [host.index for host in program.hosts], program.number)
            frames: list[bytes] = []
            try:
                self._begin(step, program, arguments, made, frames)
            except HostError:
                raise
            except BaseException:
                # A step that only some hosts have would wait for ever; a worker knows those that it has had.
                with Whole():
                    self._begin(step, program, arguments, made, frames)
                raise
        return step

    def _begin(
        self,
        step: Step,
        program: HostedProgram,
        arguments: Mapping[int, Sequence[int]],
        made: Sequence[Step | None],
        frames: list[bytes],
    ) -> None:
        """Hands a step to its hosts; nothing is wrong when that is done twice, with the same `frames`."""
        self._issued.begin(step, program.gangs, made)
        if not frames:
            frames += self._frames(step, program, arguments)
        for host, frame in zip(program.hosts, frames, strict=True):
            # What is lost since the step began is lost with the step.
            try:
                host.steps.send_frames(frame)
            except ConnectionEnded as error:
                self._lose_ended(host, error)

    def _frames(
        self, step: Step, program: HostedProgram, arguments: Mapping[int, Sequence[int]]
    ) -> list[bytes]:
        """What each host of a step is told."""
        frames: list[bytes] = []
        for gang in program.gangs:
            own = tuple(arguments[gang.number])
            frame = encode(Run(program.number, step.number, own, gang.unused.take()))
            frames += [frame] * len(gang.hosts)
        return frames

    def _number(self, count: int = 1) -> int:
        """The first of some numbers that nothing else has."""
        with self._lock:
            first = self._next
            self._next += count
        return first

    def ask(self, host: HostProcess, number: int, devices: Sequence[int], sizes: Sequence[int]) -> Fetched:
        """Asks for the bytes of some shards of an array; `fetch` waits for them.

        Args:
          host: the host.
          number: the number of the array there.
          devices: the positions of the shards, among those of the host.
          sizes: their bytes.
        """
        # Two threads that ask for one array share what comes.
        fetched, is_first = self._fetches.begin((host.index, number), sizes)
        if is_first:
            try:
                self._send(host, Fetch(number, tuple(devices)))
            except HostError as error:
                # For all who share it.
                fetched.fail(str(error))
        return fetched

    def fetch(self, host: HostProcess, number: int, fetched: Fetched) -> list[bytearray]:
        """The bytes that were asked for, when they are ready.

        Raises:
          HostError: the host is gone, or the array is an error.
        """
        fetched.wait()
        self._fetches.end((host.index, number), fetched)
        if fetched.error is not None:
            raise HostError(host.error or f"{host}: {fetched.error}")
        return fetched.shards

    def wait(self, step: Step, location: Location | None = None, number: int | None = None) -> None:
        """Waits until the hosts of a location, or all hosts, are done with a step.

        Where islands have several hosts, until nothing can spoil it any more.

        Args:
          step: the step.
          location: the location; None for all hosts.
          number: the number of an array that its part makes; None for all.

        Raises:
          HostError: the array failed, or a host is gone.
        """
        hosts = None if location is None else [host.index for host in location.holders]
        self._answers.wait(step.is_settled if self.is_several else functools.partial(step.is_done, hosts))
        step.check(hosts, number)
        if location is not None:
            location.gang.check()

    def settle(self, step: Step) -> None:
        """Waits until nothing can spoil what a step has made, where anything can.

        Raises:
          HostError: it is spoiled.
        """
        if self.is_several:
            self._answers.wait(step.is_settled)
            step.check_spoiled()

    def is_done(self, step: Step, location: Location) -> bool:
        """Whether the hosts of a location are done with a step; see `wait`."""
        hosts = [host.index for host in location.holders]
        is_done = step.is_settled if self.is_several else functools.partial(step.is_done, hosts)
        if not is_done():
            self._answers.poll()
        return is_done()

    def forget(self, location: Location, number: int) -> None:
        """Notes that nobody holds an array any more; may be called by finalizers."""
        location.gang.unused.add(number)

    def _send(self, host: HostProcess, *messages: Message) -> None:
        """Sends a host what has an order.

        Raises:
          HostError: it is gone.
        """
        self._speak(host, host.steps.send, *messages)

    def _speak(self, host: HostProcess, send: Callable[..., None], *what: Any) -> None:
        """Sends something to a host.

        Raises:
          HostError: it is gone.
        """
        if host.error is not None:
            raise HostError(host.error)
        try:
            with Whole():
                send(*what)
        except ConnectionEnded as error:
            self._lose_ended(host, error)
            # One that was told to end is not lost at once.
            raise HostError(host.error or host.gang.leaving or str(error)) from None

    def _hear_some(self, host: HostProcess) -> None:
        """Hears what a worker has said of steps."""
        try:
            host.steps.act_on_some(functools.partial(self._hear, host))
        except ConnectionEnded as error:
            self._lose_ended(host, error)
        except MessageError as error:
            self._lose(host, str(error))

    def _listen(self, host: HostProcess, connection: Connection[Any]) -> None:
        """Hears what a worker says besides."""
        try:
            while True:
                self._hear(host, connection.receive())
        except ConnectionEnded as error:
            self._lose_ended(host, error)
        except MessageError as error:
            self._lose(host, str(error))

    def _hear(self, host: HostProcess, message: object) -> None:
        host.heard = time.monotonic()
        match message:
            case Done():
                self._end_step(host, message)
            case LoadDone():
                with self._lock:
                    answer = self._loading.pop((host.index, message.program), None)
                if answer is not None:
                    answer.give(message.error)
            case Chunk() | Failed():
                if isinstance(message, Failed):
                    self._find_ended()
                self._fetches.hear(host.index, message)
            case Pong():
                pass
            case Report():
                self._reports.hear(host.index, message)
            case PeerLost():
                self._start(self._lose_peer, host, message)
            case Leaving():
                self._start(self._leaves.begin, host)
            case TraceStarted() | RunTimes() | TraceDone() | ClockTime():
                self.traces.hear(host.index, message)
            case Described():
                self._questions.hear(host.index, message)
            case _:
                raise MessageError(f"a worker does not say {type(message).__name__}")

    def _end_step(self, host: HostProcess, done: Done) -> None:
        host.progressed = host.heard
        step = self._issued.get(done.run)
        if step is None:
            return
        if done.error is None and not done.failed:
            is_last = step.done(host.index, None)
        else:
            self._find_ended(_END_SECONDS if len(step.hosts) > 1 and not step.is_lost() else 0.0)
            failed = {position: f"{host}: {what}" for position, what in done.failed.items()}
            if host.gang.is_several:
                what = done.error or next(iter(done.failed.values()))
                self._lose(host, f"step {done.run} of program {step.program} failed there: {what}")
            is_last = step.done(host.index, done.error and f"{host}: {done.error}", failed)
        if is_last:
            self._issued.end(step)

    def _lose_ended(self, host: HostProcess, error: ConnectionEnded) -> None:
        """Loses a worker whose connection has ended, which its process explains where it has ended, too."""
        if host.gang.may_end:
            self._answers.forget(host)
        elif host.error is None:
            how = host.ending() or str(error)
            first = host.gang.hosts[0]
            # JAX aborts the hosts of an island whose first one is gone.
            if first is not host and (of_first := first.ending(0)):
                host, how = first, of_first
            self._lose(host, how)

    def _lose_peer(self, host: HostProcess, said: PeerLost) -> None:
        """Loses a worker that another one does not reach."""
        peer = self.hosts[said.host]
        if host.error is None and peer.ready.probe_address == said.address:
            # Waits a little: that a process has ended is seen later than that its connections have.
            self._lose(peer, peer.ending() or f"{host} does not reach it: {said.error}")

    def _find_ended(self, seconds: float = 0.0) -> None:
        """Finds workers that have just ended, which is why others fail.

        Args:
          seconds: how long to look for one: the connections of a process end before it does.
        """
        until = time.monotonic() + seconds
        while True:
            ended = [(h, how) for h in [*self.hosts] if h.error is None and (how := h.ending(0))]
            for host, how in ended:
                self._lose(host, how)
            if ended or time.monotonic() >= until:
                return
            time.sleep(0.005)

    def _watch(self) -> None:
        """Asks all workers whether they live."""
        pause = min(_PAUSE, self.settings.heartbeat / 4)
        asked = time.monotonic()
        for number in itertools.count():
            if self._closed.wait(pause):
                return
            # When this process did not run, as after Ctrl-Z, nobody could be heard.
            late = time.monotonic() - asked - pause
            asked = time.monotonic()
            self._answers.poll()
            for host in [*self.hosts]:
                host.heard += late
                if host.error is not None:
                    continue
                silent = time.monotonic() - host.heard
                if silent > self.settings.heartbeat:
                    self._lose(host, f"it has said nothing for {silent:.0f} seconds")
                    continue
                # Never more than the system keeps for a worker that does not read: the deadline is before.
                with contextlib.suppress(ConnectionEnded):
                    host.watch.send(Ping(number))

    def _look_for_stalls(self) -> None:
        """Reports steps that do not end, and ends them."""
        while not self._closed.wait(_PAUSE):
            self._stalls.look()

    def status(self) -> tuple[tuple[HostStatus, ...], tuple[StepStatus, ...]]:
        """How all hosts are, and the steps that are not done."""
        reports = self._reports.ask(range(len(self.hosts)))
        self._answers.poll()
        return (
            tuple(host.status(reports.get(host.index)) for host in self.hosts),
            tuple(step.status() for step in self._issued.unfinished()),
        )

    def _free(self) -> None:
        """Frees what nobody holds, in batches, where no step does so."""
        while not self._closed.wait(_FREE_SECONDS):
            for gang in [*self.islands.gangs]:
                unused = gang.unused.take()
                for host in gang.hosts if unused else ():
                    with contextlib.suppress(HostError):
                        self._send(host, Free(unused))
            for program in self._unneeded.take():
                for host in program.hosts:
                    # Steps that were issued still run.
                    with contextlib.suppress(HostError):
                        self._send(host, Unload(program.number))

    def _lose(self, host: HostProcess, why: str, how: str = "is lost") -> None:
        """A host is gone, and with it its island: all that depends on it is an error from now on."""
        gang = host.gang
        closed = self._closed.is_set()
        steps = self._issued.lose(host, "is closed" if closed else f"{how}: {why}")
        if steps is None or gang.error is None:
            return
        indices = {other.index for other in gang.hosts}
        with self._lock:
            loading = [answer for key, answer in self._loading.items() if key[0] in indices]
        if not closed:
            log.error("%s", gang.error)
        # First who waits for it, so that no error that follows from this one is heard before.
        for step in steps:
            for index in indices & step.hosts:
                if step.lose(index, gang.error):
                    self._issued.end(step)
        for answer in loading:
            answer.give(gang.error)
        for other in gang.hosts:
            self._fetches.lose(other.index, gang.error)
            self._questions.lose(other.index, gang.error)
            self.traces.lose(other.index)
            self._answers.forget(other)
            other.close()
        self._answers.wake()
        if not closed:
            runs = [step for step in steps if not indices.isdisjoint(step.hosts)]
            self.islands.restart(gang, functools.partial(self._mourn, runs), self._attend)

    def _mourn(self, steps: Sequence[Step], gang: Gang) -> None:
        """Tells all other hosts that an island is lost."""
        addresses = tuple(host.ready.data_address for host in gang.hosts)
        numbers = tuple(host.index for host in gang.hosts)
        for host in [*self.hosts]:
            if host.error is None:
                with contextlib.suppress(ConnectionEnded):
                    host.watch.send(Lost(addresses))
        # Behind all steps that it has a part of.
        with self.order:
            for host in [*self.hosts]:
                runs = tuple((s.loaded, s.number) for s in steps if host.index in s.hosts)
                if host.error is None and runs:
                    with contextlib.suppress(HostError):
                        self._send(host, Cancel(numbers, runs))


class _Answer:
    """What a host answers once: what is wrong."""

    def __init__(self) -> None:
        self.error: str | None = None
        self._given = False

    def give(self, error: str | None) -> None:
        self.error = error
        self._given = True

    def is_given(self) -> bool:
        return self._given
