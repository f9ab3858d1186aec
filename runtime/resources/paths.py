"""Paths of users, made absolute when they are given: a later os.chdir does not move the written files."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Returns a path below the present working directory as absolute; storage such as gs:// as it is."""
    text = os.fspath(path)
    return text if "://" in text else str(Path(text).absolute())


def path_in_environment(name: str, environment: MutableMapping[str, str] = os.environ) -> str | None:
    """Returns the absolute path in an environment variable; None if it is not set, empty if it is empty.

    The variable becomes absolute, too: child processes may start in other folders.
    """
    text = environment.get(name)
    if text and not Path(text).is_absolute():
        text = environment[name] = absolute_path(text)
    return text
