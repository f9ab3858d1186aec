"""Programs of other projects behind `pw-proxy` and with local JAX, with their packages from an index.

`make conformance-real` runs all of them, with ARGS="fsdp tunix" those with one of these texts in their names.
A program reports values as whole floats, and is equal when all of them are to the last bit. With CLUSTER=1
the devices are on two hosts, which add in another order: it is equal within `TOLERANCE` then. Logs, and
what programs write are in build/real.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import maxtext_runs
from sides import BUILD, IN_CLUSTER, Outcome, Run, RunError, Side, Values, local_side, proxied

PROGRAMS = Path(__file__).with_name("programs")

Compared = tuple[Outcome, Outcome]
"""Outcomes of the same work behind the server and with local JAX."""


@dataclasses.dataclass(frozen=True)
class Program:
    """Work to compare.

    Attributes:
      name: its name.
      run: does it on one side; None if `compare` does it on both.
      slices: the number of slices of the server.
      joined: whether slices on hosts are joined: no mesh is over several of others.
      compare: does it on both sides where that is more than the same work twice.
      to_reach: largest ratio of the times of a step, where there is an aim.
    """

    name: str
    run: Run | None = None
    slices: int = 1
    joined: bool = True
    compare: Callable[[str], Compared] | None = None
    to_reach: float | None = None

    def both(self, reuse: bool) -> Compared:
        """Does the work on both sides.

        Raises:
          RunError: a program failed.
        """
        if self.compare is not None:
            return self.compare(self.name)
        assert self.run is not None
        local = _kept(self.name) if reuse else None
        if local is None:
            local = self.run(self.name, local_side())
            _file(self.name).write_text(json.dumps(dataclasses.asdict(local)))
        return self.run(self.name, proxied(self.slices, joined=self.joined)), local


def _file(name: str) -> Path:
    return BUILD / f"{name}-local.json"


def _kept(name: str) -> Outcome | None:
    return Outcome(**json.loads(_file(name).read_text())) if _file(name).exists() else None


def script(name: str, side: Side) -> Outcome:
    """Runs a program of `programs`, which prints the values that it reports."""
    text, seconds = side.execute(name, [PROGRAMS / f"{name.replace('-', '_')}.py"])
    lines = (line.removeprefix("value ") for line in text.splitlines() if line.startswith("value "))
    return Outcome(dict(line.rsplit(" = ", 1) for line in lines), seconds)


def unit_tests(path: str) -> Run:
    """Runs a file of pytest's tests in a checkout of Tunix; what it reports is how each test ended."""

    def run(name: str, side: Side) -> Outcome:
        arguments = ["-m", "pytest", "-v", "-p", "no:cacheprovider", "--continue-on-collection-errors", path]
        text, seconds = side.execute(name, arguments, may_fail=True)
        values = {}
        for line in text.splitlines():
            test, _, outcome = line.partition(" ")
            if "::" in test and outcome.split()[:1] in (["PASSED"], ["FAILED"], ["SKIPPED"], ["ERROR"]):
                values[test.rpartition("::")[2]] = outcome.split()[0]
        passed = sum(outcome == "PASSED" for outcome in values.values())
        return Outcome(values, seconds, notes=(f"{passed} tests pass",))

    return run


def trained(name: str, *, slices: int = 1, to_reach: float | None = None, **flags: object) -> Program:
    """Trains a model of MaxText with the given flags."""
    return Program(f"maxtext-{name}", maxtext_runs.training(flags, slices), slices, to_reach=to_reach)


ALL = (
    trained("dp", ici_data_parallelism=8, ici_fsdp_parallelism=1),
    trained("fsdp-tp", ici_fsdp_parallelism=4, ici_tensor_parallelism=2),
    trained("unrolled", scan_layers="false"),
    trained("accumulation", gradient_accumulation_steps=2),
    trained("eval", eval_interval=2, eval_steps=2),
    trained("mixtral-ep", **maxtext_runs.MIXTRAL, ici_expert_parallelism=4, ici_fsdp_parallelism=2),
    trained("deepseek3", **maxtext_runs.DEEPSEEK),
    trained(
        "pipeline",
        base_num_decoder_layers=4,
        ici_pipeline_parallelism=4,
        ici_fsdp_parallelism=2,
        num_layers_per_pipeline_stage=1,
        num_pipeline_microbatches=4,
    ),
    trained("offload", optimizer_memory_host_offload="true"),
    trained("two-slices", slices=2),
    trained(
        "larger",
        to_reach=1.10,
        steps=16,
        base_emb_dim=256,
        base_num_decoder_layers=4,
        base_num_query_heads=8,
        base_num_kv_heads=8,
        head_dim=32,
        base_mlp_dim=1024,
        max_target_length=128,
        ici_fsdp_parallelism=4,
        ici_tensor_parallelism=2,
    ),
    Program("maxtext-checkpoints", compare=maxtext_runs.checkpoints),
    Program("maxtext-elastic", compare=maxtext_runs.elastic),
    Program("elastic-kills", script, slices=2, joined=False),
    Program("tunix-sft", script),
    Program("tunix-grpo", script, slices=2, joined=False),
    Program("nnx-training", script),
    Program("numpyro-nuts", script),
    Program("blackjax-sampling", script),
    Program("diffrax-solving", script),
    Program("optimistix-solving", script),
)


def difference(ours: Values, local: Values) -> str | None:
    """Returns the first value that differs, or None."""
    if not local:
        return "no values"
    for name in [*local, *(name for name in ours if name not in local)]:
        if not _is_equal(ours.get(name, ""), local.get(name, "")):
            return f"{name} is {ours.get(name)} proxied, {local.get(name)} locally"
    return None


TOLERANCE = 1e-4
"""Relative tolerance of programs on hosts."""


def _is_equal(one: str, other: str) -> bool:
    if one == other or not IN_CLUSTER:
        return one == other
    # Numbers may have a hash of an array after them.
    numbers = [_number(text.partition(" ")[0]) for text in (one, other)]
    return None not in numbers and math.isclose(*numbers, rel_tol=TOLERANCE)


def _number(text: str) -> float | None:
    try:
        return float.fromhex(text) if "0x" in text else float(text)
    except ValueError:
        return None


def report(program: Program, ours: Outcome, local: Outcome) -> bool:
    """Prints the line of a program; returns whether it is equal."""
    differs = difference(ours.values, local.values)
    facts = [f"{len(local.values)} values", f"{ours.seconds:.0f} s proxied, {local.seconds:.0f} s locally"]
    if ours.step_ms is not None and local.step_ms is not None:
        ratio = f"{ours.step_ms / local.step_ms:.2f}"
        aim = "" if program.to_reach is None else f", to reach <= {program.to_reach:.2f}"
        facts.append(f"a step {ours.step_ms:.0f} ms, {local.step_ms:.0f} ms ({ratio}{aim})")
    facts += ours.notes
    print(f"{program.name:<24}{'equal' if differs is None else 'DIFFERS: ' + differs}; {'; '.join(facts)}")
    return differs is None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the programs that are chosen; returns 1 if one of them differs or fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only programs with one of these texts in their names")
    parser.add_argument("--reuse", action="store_true", help="keep results of local JAX of an earlier run")
    parser.add_argument(
        "--tunix-source", type=Path, help="a checkout of google/tunix, v0.1.7, whose tests run too"
    )
    options = parser.parse_args(arguments)
    programs = [*ALL]
    if options.tunix_source is not None:
        path = options.tunix_source.absolute() / "tests/sft/peft_trainer_test.py"
        programs.append(Program("tunix-tests", unit_tests(str(path))))
    chosen = [each for each in programs if any(text in each.name for text in options.names or [""])]
    if not chosen:
        parser.error("no program has such a name")
    equal = 0
    for program in chosen:
        try:
            equal += report(program, *program.both(options.reuse))
        except RunError as error:
            print(f"{program.name:<24}FAILED: {error}")
        sys.stdout.flush()
    print(f"{equal} of {len(chosen)} programs are equal to local JAX")
    return 0 if equal == len(chosen) else 1


if __name__ == "__main__":
    # Programs have process groups of their own, which are killed on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
