"""Check of the wheel: builds it from the sdist, installs it away from the checkout, and uses it there.

An editable install finds modules that the wheel lacks, so the other tests do not notice a package that is
missing from pyproject.toml. `.venv` has the packages of all extras, so they do not notice a missing
requirement either: this check installs `proxy` into an empty environment, and with --extras each extra.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "test" / "support"))

import pages  # noqa: E402

PROXY_PAGE = "docs/proxy.md"
WHEELS = ROOT / "build" / "wheels"
PACKAGES = ("compiler", "dialect", "passes", "runtime", "tools")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", *PACKAGES)

USE = """
import importlib, pkgutil, sys
from pathlib import Path
import pathways

home = Path(pathways.__file__).parent
assert home.is_relative_to(sys.prefix), f"pathways comes from {home}"
assert not {"jax", "jaxlib"} & sys.modules.keys(), "import pathways loads jax"
assert (home / "py.typed").is_file(), "py.typed is missing"
found = {m.name for m in pkgutil.walk_packages(pathways.__path__, "pathways.", onerror=sys.exit)}
expected = set(sys.argv[1:])
assert found == expected, f"missing {sorted(expected - found)}, unexpected {sorted(found - expected)}"
# That one needs Shardy's front end.
for name in sorted(found - {"pathways.mpmd"}):
    importlib.import_module(name)
for name in pathways.__all__:
    getattr(pathways, name)
page = importlib.import_module("pathways.runtime.traces.page").page_of([])
assert "<style>" in page and "<script>" in page
assert importlib.import_module("pathways.passes.manager.registry").summaries()
"""


USES = {
    "checkpoint": """python -c "
import numpy, pathways as pw
pw.checkpoint.save('saved', {'x': numpy.ones(2)}, 1)
assert pw.checkpoint.latest('saved') == 1"
""",
    "data": """python -c "
import grain
assert list(grain.MapDataset.range(3)) == [0, 1, 2]"
""",
    "demo": f"python {ROOT}/examples/char_lm.py --steps 2",
    "examples": f"""
python {ROOT}/examples/equinox_autoencoder.py
python {ROOT}/examples/flax_nnx.py
""",
    "export": """python -c "
import jax
exported = jax.export.export(jax.jit(lambda x: x + 1))(1.0)
assert jax.export.deserialize(exported.serialize()).call(1.0) == 2.0"
""",
    "lsp": "pw-lsp </dev/null",
    "metrics": """python -c "
from pathways.runtime.metrics.feed import MetricsFeed
with MetricsFeed(('127.0.0.1', 0), lambda: None) as feed:
    print(feed.address)"
""",
    "ray": """python -c "
from pathways.runtime.hosts.launch import ray_launcher
print(ray_launcher._import_ray().__version__)"
""",
    "search": f"""
sed 's/schedule="1f1b"/schedule="search(solver=cp-sat, seconds=1)"/' >step.py <<'END'
{pages.programs("README.md")[1]}
END
python step.py
""",
    "test": """python -c "
import filecheck, hypothesis, lit, optax, psutil, pytest_cov, pytest_split, pytest_timeout, xdist"
""",
}
"""Commands that use an extra."""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Runs a command and returns its output; shows the output and gives up when it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.exit(f"{done.stdout}wheel check: {' '.join(map(str, command[:4]))} ... failed")
    return done.stdout.strip()


def modules() -> list[str]:
    """The modules and packages of the checkout, by their installed names."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    names = {".".join(["pathways", *file.relative_to(ROOT).with_suffix("").parts]) for file in files}
    root = "pathways.compiler._root."
    installed = {name.removesuffix(".__init__").replace(root, "pathways.") for name in names}
    return sorted(installed - {"pathways", "pathways.compiler._root"})


def build(work: Path) -> Path:
    """Builds the wheel from the sdist, puts it into dist/, and returns its path."""
    source = work / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", work / "dist", ".", cwd=source)
    (wheel,) = (work / "dist").glob("*.whl")
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, dist))


def check_modules(wheel: Path, work: Path) -> None:
    """Imports all modules of the wheel and runs its tools, with the packages of this environment."""
    # jax and the rest are in a folder on the path, whose own .pth files are not read.
    target = work / "installed"
    venv.create(target, symlinks=True)
    binaries = target / "bin"
    paths = {key: str(target) for key in ("base", "platbase")}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", binaries / "python")
    run(*pip, "install", "-qq", "--no-deps", "--no-index", wheel, cwd=work)

    script = work / "use.py"
    script.write_text(USE)
    run(binaries / "python", "-I", script, *modules(), cwd=work)
    expected = wheel.name.split("-")[1]
    tools = ("bundle", "compile", "completion", "lsp", "opt", "run", "sim", "viz")
    for tool in (f"pw-{name}" for name in tools):
        version = run(binaries / tool, "--version", cwd=work)
        if expected not in version:
            sys.exit(f"wheel check: {tool} --version prints {version!r}, expected {expected}")


def run_in_empty_environment(commands: str, wheel: Path, folder: Path) -> str:
    """Runs shell commands where nothing is installed but a Python, and returns their output.

    Args:
      commands: the commands; the wheel replaces `git+URL` in them.
      wheel: path of the wheel.
      folder: folder that is created for the environment; the commands run in an empty folder below it.
    """
    venv.create(folder, symlinks=True)
    cwd = folder / "empty"
    cwd.mkdir()
    # The pip of this environment, since to install one takes seconds. Packages have the versions of
    # requirements.in and are downloaded once, so that a later check needs no network.
    pip = f"""pip() {{
  command=$1; shift
  local run="{sys.executable} -m pip --python {folder}/bin/python -qq"
  local pinned="--constraint {ROOT}/requirements.in"
  local options="--no-index --find-links {WHEELS} --no-compile $pinned"
  $run $command $options "$@" 2>/dev/null && return
  $run download --dest {WHEELS} $pinned "$@"
  $run $command $options "$@"
}}
"""
    env = {**os.environ, "PATH": f"{folder}/bin:{os.defpath}"}
    return run("bash", "-euc", pip + commands.replace("git+URL", wheel.as_uri()), cwd=cwd, env=env)


def check_extra(extra: str, wheel: Path, work: Path) -> None:
    """Installs the wheel with an extra into an empty environment, uses the extra there, and prints a line."""
    install = f"pip install 'pathways-mlir[{extra}] @ git+URL'\n"
    commands = pages.commands(PROXY_PAGE)[0] if extra == "proxy" else install + USES[extra]
    if not commands.startswith(install):
        sys.exit(f"wheel check: the first block of {PROXY_PAGE} does not start with {install!r}")
    start = time.monotonic()
    run_in_empty_environment(commands, wheel, work / extra)
    seconds = time.monotonic() - start
    print(f"{wheel.relative_to(ROOT)}[{extra}] works in an empty environment ({seconds:.0f} s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", action="store_true", help="check each extra, and not `proxy` alone")
    options = parser.parse_args()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel = build(work)
        check_modules(wheel, work)
        for extra in extras if options.extras else ("proxy",):
            check_extra(extra, wheel, work)


if __name__ == "__main__":
    main()
