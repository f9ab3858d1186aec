"""Tools in the process of the tests, and checks of bundles in processes that are warm."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import preloaded
import pytest

from pathways.runtime.local.devices import process_cluster
from pathways.runtime.resources import child_process, virtual
from pathways.runtime.xla import rehearse

_CHECK = (
    "import os, runpy, sys; sys.argv[1] = str(os.getppid()); "
    f"runpy.run_module({rehearse.__name__!r}, run_name='__main__')"
)


def run_tool(
    name: str, *arguments: object, stdin: bytes = b"", cwd: str | Path = "."
) -> subprocess.CompletedProcess[str]:
    """Runs a tool in this process, as it would run in a child process; restores the state that it changes.

    Args:
      name: the name of the tool, such as `pw-run`.
      *arguments: the arguments of its command line.
      stdin: its standard input.
      cwd: its working directory.
    """
    main = importlib.import_module(f"pathways.tools.{name.replace('-', '_')}").main
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with contextlib.chdir(cwd), _streams(stdin, out.fileno(), err.fileno()), _unchanged():
            code = main(words)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="backslashreplace"))
    return subprocess.CompletedProcess([name, *words], code, *texts)


def output_of(name: str, *arguments: object, **options: Any) -> str:
    """Runs a tool that must succeed; returns its output."""
    done = run_tool(name, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def error_of(name: str, *arguments: object, **options: Any) -> str:
    """Runs a tool that must fail; returns its error message."""
    done = run_tool(name, *arguments, **options)
    assert (done.returncode, done.stdout) == (1, ""), done
    return message_in(name, done.stderr)


def message_in(name: str, stderr: str) -> str:
    """Returns the error message on a standard error, without the notes before it."""
    assert "Traceback" not in stderr
    _, start, message = f"\n{stderr}".partition(f"\n{name}: error: ")
    assert start, stderr
    return message.removesuffix("\n")


def run_apart(
    name: str, *arguments: object, stdout: int, folder: Path, cwd: str | Path = "."
) -> tuple[int, str]:
    """Runs a tool in a forked process, with an open file as its standard output.

    Args:
      name: the name of the tool.
      *arguments: those of its command line.
      stdout: the file, which is closed.
      folder: a folder for its standard error.
      cwd: its working directory.

    Returns:
      Its exit code and its standard error.
    """
    command = ["-m", f"pathways.tools.{name.replace('-', '_')}", *map(str, arguments)]
    with Path(os.devnull).open() as none, (folder / "stderr").open("wb") as errors:
        descriptors = {"stdin": none.fileno(), "stdout": stdout, "stderr": errors.fileno()}
        process = preloaded.PreloadedProcess(command, **descriptors, cwd=cwd)
        os.close(stdout)
        code = process.wait(timeout=60)
    return code, (folder / "stderr").read_text()


def closed_pipe() -> int:
    """Returns the end of a pipe without a reader."""
    read, write = os.pipe()
    os.close(read)
    return write


@pytest.fixture
def warm_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearses bundles in forked processes instead of new ones."""

    def popen(command: Sequence[str], **options: Any) -> Any:
        if command[1:4] != ["-P", "-m", rehearse.__name__]:
            return preloaded.popen(command, **options)
        read, write = os.pipe()
        with Path(os.devnull).open("wb") as none:
            process: Any = preloaded.PreloadedProcess(
                ["-P", "-c", _CHECK, ""], stdin=options["stdin"], stdout=none.fileno(), stderr=write
            )
        os.close(write)
        process.stdin, process.stdout, process.stderr = None, None, os.fdopen(read, "rb")
        return process

    ours = types.SimpleNamespace(**vars(subprocess) | {"Popen": popen})
    monkeypatch.setattr(child_process, "subprocess", ours)


@contextlib.contextmanager
def _streams(stdin: bytes, out: int, err: int) -> Iterator[None]:
    """Redirects the output of Python, C and other processes to files."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    kept = os.dup(1), os.dup(2)
    os.dup2(out, 1)
    os.dup2(err, 2)
    streams = [io.TextIOWrapper(os.fdopen(os.dup(fd), "wb", 0), write_through=True) for fd in (1, 2)]
    try:
        with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            for name, stream in zip(("stdout", "stderr"), map(stack.enter_context, streams), strict=True):
                patch.setattr(sys, name, stream)
            yield
    finally:
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    """Restores modules of the user, the cluster and JAX's settings at the end."""
    modules, installed = set(sys.modules), (sys.prefix, sys.base_prefix)
    x64 = jax.config.jax_enable_x64
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(process_cluster, "_manager", None)
        # Slices get names of earlier ones; no function that was traced before is called with them.
        patch.setattr(virtual, "_names", virtual._SliceNames())
        try:
            yield
        finally:
            jax.config.update("jax_enable_x64", x64)
            for name in set(sys.modules) - modules:
                file = getattr(sys.modules[name], "__file__", None) or sys.prefix
                if name.partition(".")[0] != "pathways" and not file.startswith(installed):
                    del sys.modules[name]
