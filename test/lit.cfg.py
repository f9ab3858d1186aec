"""The lit suites: every `.mlir` file below this folder, and the Python programs of `lowering/`."""

import os
import sys
from pathlib import Path

import lit.formats

# `python`, `pw-opt` and `filecheck` are those of the environment that lit itself runs in.
binaries = Path(sys.executable).parent

config.name = "pathways"
config.test_format = lit.formats.ShTest()
config.suffixes = [".mlir"]
config.excludes = ["e2e", "fuzz", "support", "wheel"]
config.test_source_root = str(Path(__file__).parent)
config.test_exec_root = str(Path(__file__).parents[1] / "build" / "lit")
config.environment["PATH"] = os.pathsep.join([str(binaries), config.environment["PATH"]])
config.environment["JAX_PLATFORMS"] = "cpu"
config.environment["PW_CACHE_DIR"] = ""  # No compiled code from earlier runs.
# Quoted, because a checkout may be in a folder with a space in its name.
config.substitutions += [("%s", '"%{s:real}"'), ("%S", '"%{S:real}"'), ("%t", '"%{t:real}"')]
