"""Code that Ctrl-C interrupts only at its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from pathways.runtime.hosts.protocol.interrupts import uninterrupted


@pytest.fixture
def default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_uninterrupted_raises_at_its_end(default_handler):
    done = []

    def run() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_uninterrupted_leaves_the_handler_that_it_found(default_handler, handler):
    signal.signal(signal.SIGINT, handler)
    with uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is handler


def test_uninterrupted_changes_nothing_in_other_threads(default_handler):
    seen = []

    def run() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
