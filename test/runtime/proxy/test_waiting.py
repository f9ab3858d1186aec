"""Threads of a session that wait for arrays."""

from __future__ import annotations

import threading
import weakref

from pathways.runtime.proxy.serving.waiting import WaitingThreads


def test_a_session_with_too_many_pending_calls_waits() -> None:
    waiting = WaitingThreads(max_threads=2, max_pending=3)
    go, done = threading.Event(), threading.Semaphore(0)
    added = []

    def work() -> None:
        go.wait()
        done.release()

    def add() -> None:
        for number in range(5):
            waiting.run(work)
            added.append(number)

    thread = threading.Thread(target=add)
    thread.start()
    while len(added) < 3:
        pass
    thread.join(0.05)
    assert added == [0, 1, 2]
    go.set()
    thread.join()
    for _ in range(5):
        done.acquire()
    waiting.close()


def test_closing_lets_a_session_go_that_waits() -> None:
    waiting = WaitingThreads(max_threads=1, max_pending=1)
    go = threading.Event()
    waiting.run(go.wait)  # type: ignore[arg-type]
    thread = threading.Thread(target=lambda: waiting.run(lambda: None))
    thread.start()
    waiting.close()
    thread.join(30)
    assert not thread.is_alive()
    go.set()


def test_a_call_that_has_ended_is_not_kept_until_the_next() -> None:
    class Work:
        def __call__(self) -> None:
            """Returns at once."""

    waiting = WaitingThreads(max_threads=1, max_pending=1)
    freed = threading.Event()
    work = Work()
    weakref.finalize(work, freed.set)
    waiting.run(work)
    del work
    assert freed.wait(30)
    waiting.close()
