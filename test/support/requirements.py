"""Requirements of tests: `pytest.mark.needs` names them, and a test is skipped if one is missing."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NEOVIM = shutil.which("nvim")
MLIR_OPT = shutil.which("mlir-opt-22")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def _without_command(command: str, name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(command) else f"{name} is not installed"


def _without_packages(*names: str) -> Callable[[], str | None]:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return lambda: f"{missing[0]} is not installed" if missing else None


def _without_mlir_opt() -> str | None:
    return None if MLIR_OPT else "mlir-opt-22 is not installed; .ci/install-mlir-opt installs it on Debian"


def _without_chromium() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return None if CHROMIUM else "chromium is not installed; .ci/install-chromium installs it on Debian"


@functools.cache
def neovim_version() -> tuple[int, ...]:
    """Returns the version of Neovim; empty if there is none."""
    if NEOVIM is None:
        return ()
    text = subprocess.run([NEOVIM, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"NVIM v(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()


def _without_neovim() -> str | None:
    return None if neovim_version() >= (0, 8) else "Neovim 0.8 or newer is not installed"


def _without_linux() -> str | None:
    return None if sys.platform.startswith("linux") else "this is not Linux"


def _without_root() -> str | None:
    return None if os.geteuid() == 0 else "only root may mount file systems"


@functools.cache
def _without_namespaces() -> str | None:
    for command in ("unshare", "ip"):
        if shutil.which(command) is None:
            return f"network namespaces need the command {command}"
    tried = subprocess.run(["unshare", "-n", "-p", "-f", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"network namespaces are not permitted: {tried.stderr.strip()}"


@functools.cache
def _without_gpu() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return "there is no GPU"
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    tried = subprocess.run(command, capture_output=True, check=False, env=environment)
    return None if tried.returncode == 0 else "JAX sees no GPU"


def _without_two_cores() -> str | None:
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return None if len(usable) >= 2 else "this process may use one core only"


def _without_full_device() -> str | None:
    return None if Path("/dev/full").exists() else "there is no /dev/full"


MISSING: dict[str, Callable[[], str | None]] = {
    "chromium": _without_chromium,
    "fish": _without_command("fish", "fish"),
    "full device": _without_full_device,
    "gpu": _without_gpu,
    "linux": _without_linux,
    "mlir-opt": _without_mlir_opt,
    "namespaces": _without_namespaces,
    "neovim": _without_neovim,
    "no shardy": lambda: None if _without_packages("shardy")() else "Shardy's front end is installed",
    "pathwaysutils": _without_packages("pathwaysutils", "fastapi", "uvicorn"),
    "ray": _without_packages("ray"),
    "root": _without_root,
    "shardy": _without_packages("shardy"),
    "two cores": _without_two_cores,
    "zsh": _without_command("zsh", "zsh"),
}
"""Requirements by name; each returns why this machine does not meet it, in a line, or None."""
