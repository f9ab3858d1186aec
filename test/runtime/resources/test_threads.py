"""A thread that does not start is an error within a time limit."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pathways.runtime.resources import threads


def test_start_thread_runs_it():
    heard = threading.Event()
    thread = threads.start_thread(heard.wait, "of a test")
    assert "pathways of a test" in [other.name for other in threading.enumerate()]
    assert not thread.join(0)
    heard.set()
    assert thread.join(10)


def test_start_thread_refuses_a_thread_that_exits_before_its_first_line(monkeypatch):
    monkeypatch.setattr(threads, "_START_TIMEOUT_S", 0.05)
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: 1)
    with pytest.raises(RuntimeError, match="cannot start a new thread"):
        threads.start_thread(print, "of a test")


def test_start_thread_disarms_a_thread_that_begins_too_late(monkeypatch):
    """The caller has continued without it."""
    late: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    called = threading.Event()
    monkeypatch.setattr(threads, "_START_TIMEOUT_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", lambda *work: late.append(work))
        with pytest.raises(RuntimeError, match="cannot start a new thread"):
            threads.start_thread(called.set, "of a test")
    ((run, args),) = late
    run(*args)
    assert not called.is_set()


def test_interrupt_right_after_a_wait_has_released_its_lock_is_raised(monkeypatch):
    condition = threads.Condition()
    release = condition._release_save

    def release_and_interrupt() -> Any:
        release()
        raise KeyboardInterrupt

    monkeypatch.setattr(condition, "_release_save", release_and_interrupt)
    with pytest.raises(KeyboardInterrupt), condition:
        condition.wait()
    with condition:
        condition.notify_all()


def test_condition_that_is_released_twice_is_an_error():
    condition = threads.Condition()
    with pytest.raises(RuntimeError, match="un-acquired"), condition:
        condition.release()
