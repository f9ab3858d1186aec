"""Python programs in processes that have imported JAX and Pathways before they start.

A process that is new computes for a second until both are imported. Those made here are forked from one that
has done so and has started no backend; all else is their own, as if `subprocess` had started them.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "jax.numpy",
        "pathways.compiler.placed",
        "pathways.tools.drivers.bundle",
        "pathways.tools.drivers.compile",
        "pathways.tools.drivers.run",
        "pathways.tools.drivers.sim",
        "pathways.tools.drivers.viz",
        __name__,
    ]
)
_READ_AT_IMPORT = "JAX_", "PYTHONHASHSEED", "PW_CPU_DEVICES"
"""How the variables begin that Python, JAX and Pathways read when they start."""


def run(
    *command: str | Path,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run([sys.executable, *command], capture_output=True, text=True)` returns.

    Args:
      *command: `-m` and a module, `-c` and a program, or a file; then its arguments.
      cwd: its working directory.
      env: its environment; what is read when Python, JAX or Pathways start is as in this process.
      timeout: the seconds until it is killed.

    Raises:
      subprocess.TimeoutExpired: it was.
    """
    words = [str(word) for word in command]
    environment = dict(os.environ if env is None else env)
    for name in {*environment, *os.environ}:
        if name.startswith(_READ_AT_IMPORT):
            assert environment.get(name) == os.environ.get(name), f"{name} needs a process that is new"
    with tempfile.TemporaryDirectory(prefix="preloaded-") as folder:
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        process = _CONTEXT.Process(target=_main, args=(words, cwd or ".", environment, str(out), str(err)))
        process.start()
        process.join(timeout)
        late = process.exitcode is None
        if late:
            process.kill()
            process.join()
        texts = [file.read_text() if file.exists() else "" for file in (out, err)]
    if late:
        raise subprocess.TimeoutExpired(words, timeout, *texts)
    assert process.exitcode is not None
    return subprocess.CompletedProcess(words, process.exitcode, *texts)


def _main(command: Sequence[str], cwd: str, environment: Mapping[str, str], out: str, err: str) -> None:
    """The life of such a process; does not return."""
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    given = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    sys.path[1:] = [*given, *installed]
    code = 0
    try:
        match command:
            case ["-m", module, *arguments]:
                sys.path[0] = ""
                sys.argv[:] = [module, *arguments]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            case ["-c", program, *arguments]:
                sys.path[0] = ""
                sys.argv[:] = ["-c", *arguments]
                sys.modules["__main__"] = main = types.ModuleType("__main__")
                exec(compile(program, "<string>", "exec"), vars(main))
            case [path, *arguments]:
                sys.path[0] = str(Path(path).resolve().parent)
                sys.argv[:] = [path, *arguments]
                runpy.run_path(path, run_name="__main__")
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        if isinstance(exit.code, str):
            print(exit.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    # As the interpreter ends; processes of multiprocessing leave the second out.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
