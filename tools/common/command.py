"""Runner of every tool: in a child process, with flags that are read and errors of one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from pathways.tools.common.errors import UserError
from pathways.tools.common.files import write_output
from pathways.tools.common.flags import FlagParser
from pathways.tools.common.supervisor import supervise, supervised

Work = Callable[[argparse.Namespace], int]
"""Work of a tool for its flags; returns the exit code."""


def run(parser: FlagParser, work: Work, arguments: Sequence[str] | None) -> int:
    """Runs a tool; returns its exit code: 0, 1 for any error, 130 when interrupted.

    Args:
      work: its work; imports the heavy modules, so that the parent does not.
      arguments: its arguments, with which it runs in this process. By default the command line's: then it
        runs in a child process, whose parent can report a crash of MLIR or XLA.
    """
    if arguments is None:
        return supervise(parser.prog, lambda: run_here(parser, work, sys.argv[1:]))
    return run_here(parser, work, arguments)


def run_here(parser: FlagParser, work: Work, arguments: Sequence[str]) -> int:
    """Runs a tool in this process; reports mistakes of the caller and interruptions in one line."""
    try:
        options = parser.parse_args(arguments)
        answer = parser.answer(options)
        if answer is None:
            return work(options)
        write_output("-", answer.encode())
        return 0
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print(f"{parser.prog}: error: out of memory", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output has closed it; the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        if not supervised():
            print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
