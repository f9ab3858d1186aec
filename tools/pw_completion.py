"""`pw-completion` writes a script that lets a shell complete the flags of all tools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pathways.tools.common import command
from pathways.tools.common.errors import UserError
from pathways.tools.common.flags import FlagParser

SHELLS = ("bash", "zsh", "fish")

_DESCRIPTION = """\
Writes a script that lets a shell complete the flags of all tools, passes and phases among them.

  bash    eval "$(pw-completion bash)"       in ~/.bashrc
  zsh     source <(pw-completion zsh)        in ~/.zshrc, after compinit
  fish    pw-completion fish | source        in ~/.config/fish/config.fish
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; see `command.run`."""
    return command.run(make_parser(), _run, arguments)


def _run(options: argparse.Namespace) -> int:
    if options.shell is None:
        raise UserError("expected a shell: bash, zsh or fish")
    from pathways.tools.common.files import write_output
    from pathways.tools.drivers.completion import script

    write_output("-", script(options.shell, make_parsers()).encode())
    return 0


def make_parsers() -> list[FlagParser]:
    """Returns the flags of all tools."""
    from pathways.tools import (
        pw_bundle,
        pw_cluster,
        pw_compile,
        pw_lsp,
        pw_opt,
        pw_proxy,
        pw_run,
        pw_sim,
        pw_viz,
        pw_worker,
    )

    tools = (pw_bundle, pw_cluster, pw_compile, pw_lsp, pw_opt, pw_proxy, pw_run, pw_sim, pw_viz, pw_worker)
    return [*(tool.make_parser() for tool in tools), make_parser()]


def make_parser() -> FlagParser:
    """Returns the flags of the tool."""
    parser = FlagParser("pw-completion", "pw-completion bash|zsh|fish [flags]", _DESCRIPTION, library=None)
    add = parser.add_argument
    add("shell", nargs="?", choices=SHELLS, metavar="bash|zsh|fish", help="the shell")
    return parser


if __name__ == "__main__":
    sys.exit(main())
