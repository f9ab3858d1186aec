"""One Python process, one JAX program, many slices of accelerators.

Programs:
  make_virtual_device_set   the slices that a program requests: `.add_slice(shape, axis_names)`
  jit                       places a function on a slice
  program                   compiles a function that calls placed functions
  accumulate                runs a function on microbatches, which go through the stages as a pipeline
  auto                      cuts a loss into stages on slices, with the shortest simulated step
  all_to_all                exchanges blocks between slices, such as tokens with their experts
  load                      runs a program that was saved: `program.lower(*args).save(path)`
  from_mpmd                 runs a program of Shardy's MPMD compiler

Devices:
  connect, disconnect       the devices of this process, of workers, or of a service
  Ssh, Slurm, Ray, Join     what starts workers on other machines
  HostOptions, Island       settings of workers, and of one island of them
  cluster, status           islands and their devices; arrays of hosts, slices, steps in flight
  release                   unbinds a slice from its devices
  measure_links             measures the network between islands, for policies that use times

Training:
  prefetch                  puts batches on the slices that read them, during the previous step
  on_hosts                  calls functions in the processes of hosts, beside the arrays there
  checkpoint                saves and restores trees of arrays: `save`, `restore`, `latest`
  resilient                 runs training steps, and recovers by itself when islands are lost
  trace                     records the times of launches and transfers

Types of results:
  VirtualDeviceSet, VirtualSlice        of `make_virtual_device_set`, and of its `add_slice`
  Program, Lowered, Compiled            of `program`, its `lower(*args)`, and the `compile()` of that
  LoadedProgram, AutoPlan, Links        of `load`, `auto` and `measure_links`
  Array                                 of programs on hosts: a handle of an array there

Errors and warnings:
  PathwaysError                         base of all errors
  ProgramError, CompileError            a program that our passes or XLA reject
  ResourceError, BundleError            too few devices or too little memory; a damaged or foreign bundle
  HostError                             base of the errors of hosts, which follow
  HostStartError, HostLostError         a host that does not start, or exits while it is in use
  HostLeavingError, ServiceLostError    an island that accepts nothing more; a service that exits
  ClusterClosedError                    use of hosts after `disconnect`
  ProgramFailedError, CallFailedError   a program, or a function of `on_hosts`, that fails on a host
  QuotaError                            a step or an array that exceeds the quota of a client of a service
  PathwaysWarning                       a program that works, but more slowly or later than it could

Modules, and the version:
  pathways.extending                    policies and passes of your own
  pathways.proxy                        a server of unmodified JAX programs
  pathways.mpmd                         an importable front end of Shardy's MPMD compiler
  __version__                           as in `pip show pathways-mlir`

An example:

import jax.numpy as jnp
import pathways as pw

devices = pw.make_virtual_device_set()
double = pw.jit(lambda x: 2 * x, devices=devices.add_slice(1, "x"))
square = pw.jit(lambda x: x * x, devices=devices.add_slice(1, "x"))

@pw.program
def both(x):
    return square(double(x))

both(jnp.arange(3.0))
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathways import checkpoint
    from pathways.compiler.api import jit, program
    from pathways.compiler.auto.auto import auto
    from pathways.compiler.auto.auto_plan import AutoPlan
    from pathways.compiler.data.on_hosts import on_hosts
    from pathways.compiler.data.prefetch import prefetch
    from pathways.compiler.frontend.accumulate import accumulate
    from pathways.compiler.frontend.all_to_all import all_to_all
    from pathways.compiler.frontend.user_code import PathwaysWarning
    from pathways.compiler.links import Links, measure_links
    from pathways.compiler.loaded import LoadedProgram, load
    from pathways.compiler.lower.phases import ProgramError
    from pathways.compiler.mpmd.from_mpmd import from_mpmd
    from pathways.compiler.program import Program
    from pathways.compiler.resilience.resilient import resilient
    from pathways.compiler.stages import Compiled, Lowered
    from pathways.dialect.errors import PathwaysError
    from pathways.dialect.version import __version__
    from pathways.runtime.bundle.manifest import BundleError
    from pathways.runtime.clusters.cluster_status import cluster
    from pathways.runtime.clusters.connect import connect, disconnect
    from pathways.runtime.control.records.errors import (
        CallFailedError,
        ClusterClosedError,
        HostError,
        HostLeavingError,
        HostLostError,
        HostStartError,
        ProgramFailedError,
        ServiceLostError,
    )
    from pathways.runtime.hosts.client.array import Array
    from pathways.runtime.hosts.launch.launcher_records import Join, Ray, Slurm, Ssh
    from pathways.runtime.hosts.launch.options import HostOptions
    from pathways.runtime.hosts.launch.settings import Island
    from pathways.runtime.local.devices import release
    from pathways.runtime.resources.manager import ResourceError
    from pathways.runtime.resources.virtual import VirtualDeviceSet, VirtualSlice, make_virtual_device_set
    from pathways.runtime.service.protocol.service_messages import QuotaError
    from pathways.runtime.traces.file_trace import trace
    from pathways.runtime.xla.compile_cache import CompileError

__all__ = [
    "Array",
    "AutoPlan",
    "BundleError",
    "CallFailedError",
    "ClusterClosedError",
    "CompileError",
    "Compiled",
    "HostError",
    "HostLeavingError",
    "HostLostError",
    "HostOptions",
    "HostStartError",
    "Island",
    "Join",
    "Links",
    "LoadedProgram",
    "Lowered",
    "PathwaysError",
    "PathwaysWarning",
    "Program",
    "ProgramError",
    "ProgramFailedError",
    "QuotaError",
    "Ray",
    "ResourceError",
    "ServiceLostError",
    "Slurm",
    "Ssh",
    "VirtualDeviceSet",
    "VirtualSlice",
    "__version__",
    "accumulate",
    "all_to_all",
    "auto",
    "checkpoint",
    "cluster",
    "connect",
    "disconnect",
    "from_mpmd",
    "jit",
    "load",
    "make_virtual_device_set",
    "measure_links",
    "on_hosts",
    "prefetch",
    "program",
    "release",
    "resilient",
    "status",
    "trace",
]

# Imported when they are first used: `import pathways` loads neither jax nor jaxlib, so that tools which need
# no tracing start fast.
_MODULES = {
    "Array": "runtime.hosts.client.array",
    "AutoPlan": "compiler.auto.auto_plan",
    "BundleError": "runtime.bundle.manifest",
    "CallFailedError": "runtime.control.records.errors",
    "CompileError": "runtime.xla.compile_cache",
    "Compiled": "compiler.stages",
    "ClusterClosedError": "runtime.control.records.errors",
    "HostError": "runtime.control.records.errors",
    "HostLeavingError": "runtime.control.records.errors",
    "HostLostError": "runtime.control.records.errors",
    "HostOptions": "runtime.hosts.launch.options",
    "HostStartError": "runtime.control.records.errors",
    "PathwaysError": "dialect.errors",
    "ProgramFailedError": "runtime.control.records.errors",
    "Island": "runtime.hosts.launch.settings",
    "Join": "runtime.hosts.launch.launcher_records",
    "Links": "compiler.links",
    "LoadedProgram": "compiler.loaded",
    "Lowered": "compiler.stages",
    "PathwaysWarning": "compiler.frontend.user_code",
    "Program": "compiler.program",
    "ProgramError": "compiler.lower.phases",
    "QuotaError": "runtime.service.protocol.service_messages",
    "Ray": "runtime.hosts.launch.launcher_records",
    "ResourceError": "runtime.resources.manager",
    "ServiceLostError": "runtime.control.records.errors",
    "Slurm": "runtime.hosts.launch.launcher_records",
    "Ssh": "runtime.hosts.launch.launcher_records",
    "VirtualDeviceSet": "runtime.resources.virtual",
    "VirtualSlice": "runtime.resources.virtual",
    "__version__": "dialect.version",
    "accumulate": "compiler.frontend.accumulate",
    "all_to_all": "compiler.frontend.all_to_all",
    "auto": "compiler.auto.auto",
    "checkpoint": "checkpoint",
    "cluster": "runtime.clusters.cluster_status",
    "connect": "runtime.clusters.connect",
    "disconnect": "runtime.clusters.connect",
    "from_mpmd": "compiler.mpmd.from_mpmd",
    "jit": "compiler.api",
    "load": "compiler.loaded",
    "make_virtual_device_set": "runtime.resources.virtual",
    "measure_links": "compiler.links",
    "on_hosts": "compiler.data.on_hosts",
    "prefetch": "compiler.data.prefetch",
    "program": "compiler.api",
    "release": "runtime.local.devices",
    "resilient": "compiler.resilience.resilient",
    "status": "runtime.clusters.cluster_status",
    "trace": "runtime.traces.file_trace",
}


def _make_paths_absolute() -> None:
    """Makes the folders and files that environment variables name independent of os.chdir."""
    for name in ("PW_CACHE_DIR", "PW_CLUSTERS", "PW_DUMP_TO", "PW_TRACE"):
        if path := os.environ.get(name):
            os.environ[name] = str(Path(path).absolute())


_make_paths_absolute()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        # With `name` and `obj`, Python suggests a name.
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    value = module if name == "checkpoint" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
