"""Folders of `passes` follow the pipeline: read from top to bottom, it goes through each of them once."""

from __future__ import annotations

import itertools

from pathways.passes.pipeline import Options, phases

FOLDERS = {"imported": "import_", "placed": "place", "sharded": "shard", "scheduled": "schedule"}


def test_pipeline_goes_through_each_folder_once() -> None:
    passes = [item for phase in phases(Options(zero1=True)) for item in phase.passes]
    folders = [type(item).__module__.rpartition(".")[0] for item in passes]
    visits = [folder for folder, _ in itertools.groupby(folders)]
    assert len(visits) == len(set(visits)), visits


def test_passes_of_a_phase_are_in_its_folder() -> None:
    for phase in phases(Options(zero1=True)):
        modules = [type(item).__module__.removeprefix("pathways.passes.") for item in phase.passes]
        assert {module.partition(".")[0] for module in modules} == {FOLDERS[phase.name]}
