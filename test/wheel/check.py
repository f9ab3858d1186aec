"""Check of the wheel: builds it from the sdist, installs it away from the checkout, and uses it there.

An editable install finds modules that the wheel lacks, so the other tests do not notice a package that is
missing from pyproject.toml.
"""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command and returns its output; shows the output and gives up when it fails."""
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
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


def check(work: Path) -> None:
    """Runs the whole check in an empty folder."""
    source = work / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", work / "dist", ".", cwd=source)
    (wheel,) = (work / "dist").glob("*.whl")

    # jax and the rest come from this environment: a folder on the path, whose own .pth files are not read.
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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder))
