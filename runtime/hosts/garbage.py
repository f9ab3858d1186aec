"""What nobody holds any more of what hosts have.

Finalizers say so, which may run anywhere and at any time: all that they do is to append to a queue. What
stands in the queues is told to hosts later, along with steps or by a thread.
"""

from __future__ import annotations

import collections
import contextlib

from pathways.runtime.hosts.hosted import HostedProgram


class Garbage:
    """Arrays and programs that hosts may forget.

    Args:
      hosts: how many hosts there are.
    """

    def __init__(self, hosts: int) -> None:
        self._arrays: list[collections.deque[int]] = [collections.deque() for _ in range(hosts)]
        self._programs: collections.deque[HostedProgram] = collections.deque()

    def add_array(self, host: int, number: int) -> None:
        """Notes that nobody holds an array of a host."""
        self._arrays[host].append(number)

    def add_program(self, program: HostedProgram) -> None:
        """Notes that nobody runs a program."""
        self._programs.append(program)

    def take_arrays(self, host: int) -> tuple[int, ...]:
        """The arrays of a host that nobody holds, once."""
        arrays = self._arrays[host]
        return tuple(_taken(arrays)) if arrays else ()

    def take_programs(self) -> list[HostedProgram]:
        """The programs that nobody runs, once."""
        return _taken(self._programs)


def _taken[T](queue: collections.deque[T]) -> list[T]:
    taken = []
    # Another thread may take some at the same time.
    with contextlib.suppress(IndexError):
        while queue:
            taken.append(queue.popleft())
    return taken
