"""Terms of the project: the table from which `make docs` writes docs/glossary.md."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Term(NamedTuple):
    """Term of the project.

    Attributes:
      name: the term.
      meaning: its meaning, in a sentence or two.
      place: the module that defines it, below `pathways`, with `:` before a name in it.
    """

    name: str
    meaning: str
    place: str


SECTIONS: dict[str, tuple[Term, ...]] = {
    "Programs": (
        Term(
            "program", "A JAX function compiled for many slices by `pw.program`.", "compiler.program:Program"
        ),
        Term(
            "placed function", "A function that `pw.jit` places on a slice.", "compiler.placed:PlacedFunction"
        ),
        Term(
            "placed call",
            "A call of a placed function in a program; autodiff derives further placed calls from it.",
            "dialect.operations.metadata:CallMetadata",
        ),
        Term("glue", "The operations of a program between placed calls.", "dialect.operations.ops:LaunchOp"),
        Term(
            "signature",
            "The key for which a program is specialised: types, structure, static arguments.",
            "compiler.frontend.arguments:Signature",
        ),
        Term(
            "microbatch",
            "A block of the leading axis of a batch; `pw.accumulate` runs a function on each.",
            "compiler.frontend.accumulate:accumulate",
        ),
        Term(
            "stage",
            "A run of forward calls on one slice, numbered in the order of the data; `stage=` sets it.",
            "dialect.attributes.origins:Origin",
        ),
        Term(
            "kind",
            "The role of a placed call: forward, backward, gradient that is differentiated, recomputation.",
            "dialect.attributes.origins:Origin",
        ),
        Term(
            "replica",
            "One of the equal copies of a slice over which a batch is divided.",
            "dialect.operations.ops:ReplicaOp",
        ),
        Term(
            "donation",
            "An argument whose buffer a computation consumes, so that a result may reuse it.",
            "compiler.lower.donation",
        ),
        Term(
            "process cluster",
            "The devices that a process uses: its cluster, its slices and their bindings.",
            "runtime.resources.process_cluster:ProcessCluster",
        ),
    ),
    "Devices": (
        Term("device", "An accelerator, or a CPU device of XLA.", "runtime.resources.cluster:Device"),
        Term("host", "A machine, or a process on it, that owns devices.", "runtime.resources.cluster:Host"),
        Term(
            "island",
            "Hosts whose devices one computation may use together; the unit of failure.",
            "runtime.resources.cluster:DeviceIsland",
        ),
        Term(
            "cluster",
            "All islands of a process, a controller or a service.",
            "runtime.resources.cluster:Cluster",
        ),
        Term(
            "virtual slice, slice",
            "A mesh of devices that a program requests, without naming any device.",
            "runtime.resources.virtual:VirtualSlice",
        ),
        Term(
            "binding",
            "The devices of a slice, chosen at its first use and kept until it is released.",
            "runtime.resources.manager:Binding",
        ),
        Term(
            "mesh",
            "Named axes and their sizes, over which arrays are sharded.",
            "dialect.attributes.meshes:Mesh",
        ),
        Term(
            "sharding",
            "The mesh axes that divide each dimension of an array.",
            "dialect.attributes.meshes:Sharding",
        ),
        Term("shard", "The block of an array on one device.", "dialect.attributes.meshes"),
        Term(
            "placement",
            "The slices of a value; a mirrored value has a copy on more than one.",
            "dialect.operations.placement:slices_of",
        ),
    ),
    "The IR": (
        Term(
            "launch",
            "One execution of a computation on all devices of a slice.",
            "dialect.operations.ops:LaunchOp",
        ),
        Term(
            "computation",
            "A private function of StableHLO that becomes one XLA module.",
            "runtime.plan.plan:Computation",
        ),
        Term(
            "origin",
            "The placed call that a launch stands for: kind, stage, microbatch.",
            "dialect.attributes.origins:Origin",
        ),
        Term(
            "transfer",
            "The move of a value to another slice, the only way in which a value changes slice.",
            "dialect.operations.ops:TransferOp",
        ),
        Term(
            "exchange of blocks",
            "The move of a block from each of some slices to each other one, for `pw.all_to_all`.",
            "dialect.operations.ops:AllToAllOp",
        ),
        Term(
            "route",
            "The source operand and device of a piece of a transfer.",
            "dialect.attributes.fields:Route",
        ),
        Term(
            "channel",
            "A path between two slices for values of one type, known before anything runs.",
            "dialect.operations.ops:ChannelOp",
        ),
        Term(
            "mirror",
            "The union of equal copies on different slices in one value.",
            "dialect.operations.ops:MirrorOp",
        ),
        Term(
            "loop",
            "A declared loop over microbatches, or over iterations that carry values.",
            "dialect.operations.ops:LoopOp",
        ),
        Term("iteration", "One run of the body of a loop, counted from 0.", "dialect.operations.ops:IndexOp"),
        Term("carry", "A value that one iteration passes on to the next.", "dialect.operations.ops:CarryOp"),
        Term(
            "chunk",
            "The iterations of a loop without a known end that are issued at once.",
            "dialect.operations.ops:UntilOp",
        ),
        Term(
            "sub-program",
            "A program inside a module, such as the chunk of a loop; the IR calls it a `part`.",
            "dialect.operations.ops:RunOp",
        ),
        Term(
            "release",
            "The end of a value's life, after which its buffers are free.",
            "dialect.operations.ops:ReleaseOp",
        ),
        Term(
            "form",
            "A set of rules about the IR at one point of the pipeline, such as `placed`.",
            "dialect.verification.forms:Form",
        ),
        Term("relation", "A rule of a form about more than one operation.", "dialect.relations.relations"),
        Term(
            "trait",
            "A property of an operation that passes query instead of its class.",
            "dialect.operations.traits:Trait",
        ),
    ),
    "Passes and schedules": (
        Term(
            "pass",
            "A rewrite or check of a module, with the forms that it accepts and produces.",
            "passes.manager.base:Pass",
        ),
        Term("phase", "The passes from one printed form to the next.", "passes.pipeline:Phase"),
        Term(
            "order",
            "The positions of launches and sends on a slice, stored as data in the IR.",
            "dialect.relations.order",
        ),
        Term(
            "schedule",
            "An order of microbatches on all slices, from a policy or from a file.",
            "compiler.api:program",
        ),
        Term(
            "policy",
            "A named rule that computes a schedule, such as `1f1b`.",
            "passes.schedule.policies.registry",
        ),
        Term(
            "half",
            "One of the two backward launches of a split backward, for inputs or for weights.",
            "dialect.attributes.origins:Origin",
        ),
        Term(
            "unit",
            "An operation, or an iteration of a loop over layers, between which `pw.auto` may cut.",
            "compiler.auto.units:Units",
        ),
    ),
    "Running": (
        Term(
            "plan",
            "A scheduled program as data: slots, and the steps that launch, transfer and release.",
            "runtime.plan.plan:Plan",
        ),
        Term(
            "executable",
            "A program of one signature, loaded on its devices.",
            "compiler.backends.executable:ProgramExecutable",
        ),
        Term(
            "backend",
            "The devices of this process, or of workers, for which programs are loaded.",
            "compiler.backends.backend:load_program",
        ),
        Term("bundle", "A compiled program in one file.", "runtime.bundle.manifest:Manifest"),
        Term(
            "timeline",
            "The times of launches and transfers of one step, simulated or measured.",
            "runtime.traces.timeline:Timeline",
        ),
        Term("bubble", "The share of a step in which a slice idles.", "runtime.traces.timeline:Timeline"),
    ),
    "Hosts": (
        Term(
            "controller",
            "The process that traces, compiles and dispatches steps to workers.",
            "runtime.hosts.client",
        ),
        Term(
            "worker",
            "The process of a host: it loads host programs and runs their steps.",
            "runtime.clusters.worker_process",
        ),
        Term("gang", "The workers of an island, which start and fail together.", "runtime.control.gang"),
        Term(
            "step",
            "One run of a program on the hosts of a cluster; all hosts have one order of steps.",
            "runtime.control.records.step",
        ),
        Term(
            "host program",
            "The function of one host of a program, with sends and receives.",
            "dialect.relations.host_relations",
        ),
        Term(
            "service",
            "A controller in a process of its own, which many clients share.",
            "runtime.service",
        ),
        Term("client", "A program that a service runs steps for.", "runtime.hosts.client"),
    ),
}
"""The terms of each section, those that others build on first."""


def page() -> str:
    """Returns the glossary as Markdown.

    Raises:
      LookupError: a term's place does not exist.
    """
    lines = ["# Glossary\n", "One word for each concept, and the place that defines it.\n"]
    for section, terms in SECTIONS.items():
        lines += [f"## {section}\n", "| term | meaning | defined in |\n| --- | --- | --- |"]
        lines += [f"| {term.name} | {term.meaning} | {_link(term)} |" for term in terms]
        lines.append("")
    return "\n".join(lines)


def _link(term: Term) -> str:
    module, _, name = term.place.partition(":")
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = file.read_text() if file.exists() else ""
    if not file.exists() or (name and f"class {name}" not in text and f"def {name}" not in text):
        raise LookupError(f"glossary: '{term.name}' is defined in {term.place}, which does not exist")
    relative = file.relative_to(ROOT)
    return f"[`{name or relative}`](../{relative})"
