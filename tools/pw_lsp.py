"""`pw-lsp` is a language server for MLIR with the operations of `pw`: editors start it and talk to it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pathways.tools.common import command
from pathways.tools.common.errors import UserError
from pathways.tools.common.flags import FlagParser, count

_DESCRIPTION = """\
Speaks the Language Server Protocol over standard input and output. Editors get diagnostics while one types,
what the operation, attribute, pass or value under the cursor is, definitions, references and symbols. Text is
parsed in a process of its own, so that a crash of MLIR is a diagnostic.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    return command.run(make_parser(), _run, arguments)


def _run(options: argparse.Namespace) -> int:
    try:
        import pygls  # noqa: F401
    except ImportError:
        raise UserError(
            "pygls is not installed; it is in an extra: pip install 'pathways-mlir[lsp]'"
        ) from None
    from pathways.tools.lsp import server

    return server.serve(options.timeout)


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    parser = FlagParser("pw-lsp", "pw-lsp [--timeout SECONDS]", _DESCRIPTION, library="pygls")
    add = parser.add_argument
    add("--timeout", type=count, default=10, metavar="SECONDS", help="time limit of one parse; default: 10")
    add(
        "--stdio",
        action="store_true",
        help="accepted for editors that pass it; standard input and output are always used",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
