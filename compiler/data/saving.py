"""Saves of checkpoints in progress, and the exit status of a process whose last save failed."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from pathways.runtime.clusters import connect
from pathways.runtime.data.array_files import system_error
from pathways.runtime.data.host_files import CheckpointFailedError, HostSave

_WRITERS_SECONDS = 60.0

log = logging.getLogger("pathways")


class Saving:
    """Save in progress.

    Args:
      step: see Attributes.
      path: see Attributes.
      response: Orbax's save.
      remove_old: removes older checkpoints when this one is complete.
      of_hosts: the arrays that hosts write.

    Attributes:
      step: the step that is saved.
      path: its folder, which appears when it is complete.
      is_reported: whether a caller has waited for it, and got its error.
    """

    def __init__(
        self,
        step: int,
        path: str,
        response: Any,
        remove_old: Callable[[], None] | None = None,
        of_hosts: HostSave | None = None,
    ) -> None:
        self.step = step
        self.path = path
        self.is_reported = False
        self._response = response
        # None after other checkpoints have been removed.
        self._remove_old = remove_old
        self._removing = threading.Lock()
        self._of_hosts = of_hosts

    def __repr__(self) -> str:
        return f"<checkpoint of step {self.step} in {self.path}>"

    def wait(self) -> None:
        """Waits until the checkpoint is written.

        Raises:
          OSError: the checkpoint cannot be written, and does not exist.
        """
        self.is_reported = True
        try:
            self._response.result()
        except Exception as error:
            _wait_for_writers()
            if self._of_hosts is not None:
                self._of_hosts.drop()
            failed = save_error(self.step, self.path, error)
            # Without all frames of Orbax if the message explains the error.
            raise failed from error.__cause__ if isinstance(error, CheckpointFailedError) else error
        with self._removing:
            remove, self._remove_old = self._remove_old, None
            if remove is not None:
                try:
                    remove()
                except OSError as error:
                    text = f"{self.path} was saved, but older checkpoints were not removed: {error}"
                    raise _of_system(text, error) from error


def save_error(step: int, path: str, error: Exception) -> CheckpointFailedError:
    """Returns the error of a save that Orbax's error ended."""
    cause = system_error(error, path) or error
    return _of_system(f"the checkpoint of step {step} in {path} was not saved: {cause}", cause)


def _of_system(text: str, cause: Exception) -> CheckpointFailedError:
    """Returns an error with the number and the file of its cause."""
    failed = CheckpointFailedError(text)
    if isinstance(cause, OSError):
        failed.errno, failed.filename = cause.errno, cause.filename
    return failed


def _wait_for_writers() -> None:
    """Waits for threads in which Orbax continues a save that has failed, for up to a minute.

    Orbax raises the first error at once, and the next save of the same step writes to files of the same
    names.
    """
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("orbax.") and thread is not threading.current_thread():
            # The error of the thread was raised already.
            with contextlib.suppress(Exception):
                thread.join(_WRITERS_SECONDS)


class PendingSave:
    """The one save that may be in progress.

    Attributes:
      starting: the lock that a caller holds while a save starts, so that saves start one at a time.
    """

    def __init__(self) -> None:
        self._waits_at_exit = False
        self._reset()
        # A child process has none of the threads that write.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.starting = threading.Lock()
        # Held by the caller that waits: no other may take an incomplete save for a complete one.
        self._waiting = threading.Lock()
        self._saving: Saving | None = None
        # Whether the last save failed, and no caller has received its error.
        self._has_failed = False

    def is_active(self) -> bool:
        """Returns whether a save starts or is in progress."""
        return self.starting.locked() or self._saving is not None

    def wait(self) -> None:
        """Waits for the save.

        Raises:
          OSError: it failed.
        """
        with self._waiting:
            saving = self._saving
            if saving is None:
                return
            # Read before `wait` sets it: an error that a caller has received is not raised again here.
            was_reported, failure = saving.is_reported, None
            try:
                saving.wait()
            except OSError as error:
                failure = error
            self._saving = None
        if failure is not None and not was_reported:
            raise failure

    def add(self, saving: Saving) -> None:
        """Adds a save."""
        self._saving = saving
        self._has_failed = False
        if not self._waits_at_exit:
            self._waits_at_exit = True
            # Orbax starts threads while it writes, and Python starts none any more during `atexit`.
            threading._register_atexit(self._wait_at_exit)  # type: ignore[attr-defined]
            # Hosts stay connected until all is written.
            connect.before_end.append(self._wait_at_end)

    def _wait_at_end(self) -> None:
        try:
            self.wait()
        except OSError as error:
            self._has_failed = True
            log.error("%s", error)

    def _wait_at_exit(self) -> None:
        self._wait_at_end()
        # After Ctrl-C the process exits by the signal, so that a shell ends its script.
        if self._has_failed and not isinstance(getattr(sys, "last_exc", None), KeyboardInterrupt):
            atexit.register(_exit_with_failure)


def _exit_with_failure() -> None:
    """Exits with 1, after all other exit handlers: Python lets none of them choose the exit status."""
    atexit.unregister(_exit_with_failure)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1)
