"""Training by MaxText on synthetic batches: configurations, checkpoints, slices that are lost and return."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sides import BUILD, IN_CLUSTER, TIMEOUT_S, Outcome, Run, RunError, Side, Values, local_side, proxied

FLAGS: Mapping[str, object] = {
    "hardware": "cpu",
    "skip_jax_distributed_system": "true",
    "dataset_type": "synthetic",
    "enable_checkpointing": "false",
    "steps": 4,
    "per_device_batch_size": 1,
    "max_target_length": 64,
    "base_emb_dim": 64,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 4,
    "base_mlp_dim": 128,
    "base_num_decoder_layers": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "attention": "dot_product",
    "dtype": "float32",
    "learning_rate": "1e-3",
    # By default it depends on the number of steps, which differs between a run and one that continues it.
    "learning_rate_schedule_steps": 1000,
    "warmup_steps_fraction": 0,
    "sharding_tolerance": 0.3,
    "log_config": "false",
    "jax_cache_dir": "",
    "enable_goodput_recording": "false",
    "monitor_goodput": "false",
    "enable_gcp_goodput_metrics": "false",
}
"""Flags of a tiny model on the CPU, without services of a cloud."""

_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "base_moe_mlp_dim": 128,
    "megablox": "false",
    "sparse_matmul": "false",
}
MIXTRAL: Mapping[str, object] = {"decoder_block": "mixtral", **_EXPERTS}
DEEPSEEK: Mapping[str, object] = {
    "decoder_block": "deepseek",
    "attention_type": "mla",
    "base_num_decoder_layers": 3,
    "first_num_dense_layers": 1,
    "shared_experts": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "mtp_num_layers": 1,
    **_EXPERTS,
}

CHECKPOINTS: Mapping[str, object] = {
    "enable_checkpointing": "true",
    # A single controller, which is how MaxText sees devices of a proxy, writes this format alone.
    "checkpoint_storage_use_ocdbt": "false",
    "checkpoint_storage_use_zarr3": "false",
}

_REPORTED = ("learning/loss", "learning/grad_norm", "learning/param_norm", "eval/avg_loss")


def _arguments(side: Side, folder: str, metrics: Path, flags: Mapping[str, object]) -> list[object]:
    given = {
        **FLAGS,
        "base_output_directory": BUILD / "out",
        "run_name": folder,
        "metrics_file": metrics,
        "enable_single_controller": "true" if side.is_proxied else "false",
        **flags,
    }
    metrics.unlink(missing_ok=True)
    return ["-m", "maxtext.trainers.pre_train.train", *(f"{name}={value}" for name, value in given.items())]


def _train(name: str, side: Side, flags: Mapping[str, object], folder: str | None = None) -> Outcome:
    """Trains; `folder` is the run whose checkpoints it continues and adds to."""
    metrics = BUILD / f"{name}-{side.label}.jsonl"
    _, seconds = side.execute(name, _arguments(side, folder or metrics.stem, metrics, flags))
    lines = _lines(metrics)
    # The first steps wait for what is compiled at first use.
    times = [line["perf/step_time_seconds"] for line in lines[2:] if "perf/step_time_seconds" in line]
    return Outcome(_values(lines), seconds, statistics.median(times) * 1e3 if times else None)


def _lines(metrics: Path) -> list[dict[str, float]]:
    if not metrics.exists():
        return []
    return [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]


def _values(lines: Sequence[Mapping[str, float]]) -> Values:
    return {
        f"{key.replace('/', ' ')} of step {int(line['step'])}": float(line[key]).hex()
        for line in lines
        for key in _REPORTED
        if key in line
    }


def _mesh(side: Side, slices: int) -> dict[str, object]:
    """Flags of a mesh with all weights in each slice; the local CPU has no slices, but as many devices."""
    if slices == 1:
        return {}
    if side.is_proxied:
        return {"num_slices": slices, "dcn_data_parallelism": slices}
    return {"ici_data_parallelism": slices}


def training(flags: Mapping[str, object], slices: int = 1) -> Run:
    """A training with these flags."""
    return lambda name, side: _train(name, side, {**_mesh(side, slices), **flags})


def checkpoints(name: str) -> tuple[Outcome, Outcome]:
    """Saves on each side, and continues on the other; the reference saves and continues with local JAX."""
    locally, across, back = (f"{name}-{kind}" for kind in ("local", "local-to-proxied", "proxied-to-local"))
    for folder in (locally, across, back):
        shutil.rmtree(BUILD / "out" / folder, ignore_errors=True)

    saved = _train(f"{locally}-saves", local_side(), {**CHECKPOINTS, "steps": 3}, locally)
    shutil.copytree(BUILD / "out" / locally, BUILD / "out" / across)
    saved_proxied = _train(f"{back}-saves", proxied(), {**CHECKPOINTS, "steps": 3}, back)
    sides = {locally: local_side(), across: proxied(), back: local_side()}
    continued = {
        folder: _train(folder, side, {**CHECKPOINTS, "steps": 6}, folder) for folder, side in sides.items()
    }
    for folder, outcome in continued.items():
        if not outcome.values or any(key.endswith("step 2") for key in outcome.values):
            raise RunError(f"{folder}: did not continue after step 2")

    def joined(*outcomes: Outcome) -> Outcome:
        values = {
            f"{key}, run {number}": value
            for number, outcome in enumerate(outcomes)
            for key, value in outcome.values.items()
        }
        return Outcome(values, sum(outcome.seconds for outcome in outcomes))

    return (
        joined(saved_proxied, continued[across], continued[back]),
        joined(saved, continued[locally], continued[locally]),
    )


# Elastic training.

ELASTIC: Mapping[str, object] = {
    **CHECKPOINTS,
    "elastic_enabled": "true",
    "elastic_backup_kind": "checkpoint",
    "elastic_min_slice_count": 1,
    "checkpoint_period": 10,
    "steps": 100_000,
}

_COMPILES = "No existing checkpoints found"
"""Line that MaxText logs before it traces and compiles its step."""

_SAVES = r"\[async\] Started save checkpoint"
"""Line that it logs while a checkpoint is written."""

_COMPARED_STEPS = 3
"""Number of steps after each event that are compared."""


@dataclasses.dataclass(frozen=True)
class _Attempt:
    """Steps between two events.

    Attributes:
      slices: how many there were.
      start: the first step.
      values: what steps reported.
    """

    slices: int
    start: int
    values: Values


class _Log:
    """A log that is read while it is written."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        self._path = path
        self._process = process
        self._offset = 0

    def wait_for(self, pattern: str, count: int = 1) -> None:
        """Waits until what was not read yet has a pattern so many times, and reads until there.

        Raises:
          RunError: the program ended, or took too long.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            is_running = self._process.poll() is None
            text = self._path.read_text(errors="replace")
            matches = [*itertools.islice(re.finditer(pattern, text[self._offset :]), count)]
            if len(matches) == count:
                self._offset += matches[-1].end()
                return
            if not is_running or time.monotonic() > deadline:
                raise RunError(f"waited for {pattern!r} in vain ({self._path})")
            time.sleep(0.02)


_ATTEMPT, _STEP = "Elastic attempt {}", r"completed step: \d+"


def elastic(name: str) -> tuple[Outcome, Outcome]:
    """Loses a slice while the first step is compiled, returns it, and loses it again while steps run.

    The reference continues each attempt from the same checkpoint with local JAX, on as many devices.
    """
    shutil.rmtree(BUILD / "out" / name, ignore_errors=True)
    side = proxied(slices=2)
    # Joined islands are lost together, and return by themselves.
    slices = (2, 2, 2, 2) if IN_CLUSTER else (2, 1, 2, 1)
    metrics = BUILD / f"{name}-proxied.jsonl"
    began = time.monotonic()
    with side.start(name, _arguments(side, name, metrics, ELASTIC)) as (process, path):
        log = _Log(path, process)
        log.wait_for(_COMPILES)
        time.sleep(1)
        _lose(process)
        log.wait_for(_ATTEMPT.format(2))
        log.wait_for(_STEP, 5)
        if IN_CLUSTER:
            _lose(process)
        else:
            process.send_signal(signal.SIGUSR2)
        log.wait_for(_ATTEMPT.format(3))
        log.wait_for(_STEP, 15)
        if IN_CLUSTER:
            log.wait_for(_SAVES)
        _lose(process)
        if not IN_CLUSTER:
            log.wait_for("island1 lost")
        lost = time.monotonic()
        log.wait_for(_ATTEMPT.format(4))
        log.wait_for(_STEP)
        recovery = time.monotonic() - lost
        log.wait_for(_STEP, 5)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    seconds = time.monotonic() - began
    values, reference = {}, {}
    for number, attempt in enumerate(_attempts(path.read_text(), _lines(metrics), slices)):
        expected = _continued(f"{name}-{number}", BUILD / "out" / name, attempt)
        for key, value in expected.values.items():
            reference[f"{key}, attempt {number}"] = value
            values[f"{key}, attempt {number}"] = attempt.values.get(key, "none")
    note = f"{recovery:.1f} s from a slice lost to the next step, to reach <= 3"
    return Outcome(values, seconds, notes=(note,)), Outcome(reference, 0.0)


def _lose(process: subprocess.Popen[bytes]) -> None:
    """Has the server lose its last slice; on hosts, kills the worker."""
    if not IN_CLUSTER:
        process.send_signal(signal.SIGUSR1)
        return
    files = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [int(child) for file in files for child in file.read_text().split()]
    workers = [pid for pid in children if b"worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(max(workers), signal.SIGKILL)


def _attempts(log: str, lines: Sequence[Mapping[str, float]], slices: Sequence[int]) -> Iterator[_Attempt]:
    """Yields the attempts that have steps, of a log and of what was reported of all steps."""
    attempts = [re.findall(_STEP, text) for text in re.split(_ATTEMPT.format(r"\d+"), log)[1:]]
    if len(attempts) != len(slices):
        raise RunError(f"{len(attempts)} attempts in place of {len(slices)}")
    rest = [*lines]
    for count, steps in zip(slices, attempts, strict=True):
        reported = []
        for step in steps:
            # An attempt may fail between its log and its report of a step.
            if rest and int(rest[0]["step"]) == int(step.rpartition(" ")[2]):
                reported.append(rest.pop(0))
        if reported:
            yield _Attempt(count, int(reported[0]["step"]), _values(reported))


def _continued(name: str, saved: Path, attempt: _Attempt) -> Outcome:
    """The first steps of an attempt with local JAX."""
    folder = BUILD / "out" / name
    shutil.rmtree(folder, ignore_errors=True)
    checkpoint = f"checkpoints/{attempt.start - 1}"
    if attempt.start:
        with contextlib.suppress(FileNotFoundError):
            shutil.copytree(saved / checkpoint, folder / checkpoint)
    side = local_side(4 * attempt.slices)
    flags = {
        **CHECKPOINTS,
        **_mesh(side, attempt.slices),
        "save_checkpoint_on_completion": "false",
        "steps": attempt.start + _COMPARED_STEPS,
    }
    return _train(name, side, flags, name)
