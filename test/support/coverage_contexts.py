"""Plugin of pytest that counts lines for each test, also in processes that it starts: `-p coverage_contexts`.

Contexts are named as by pytest-cov, `<id of the test>|setup`, `|run` and `|teardown`; `|child` is for those
processes.
"""

import os
import sys

import pytest
from coverage import Coverage
from coverage.config import CoverageConfig

_VARIABLE = "COVERAGE_PROCESS_CONFIG"


def pytest_runtest_setup(item: pytest.Item) -> None:
    set_context(item, "setup")


def pytest_runtest_call(item: pytest.Item) -> None:
    set_context(item, "run")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    set_context(item, "teardown")


def set_context(item: pytest.Item, phase: str) -> None:
    """Names the context of this process and of processes that it starts from now on."""
    if measured := Coverage.current():
        measured.switch_context(f"{item.nodeid}|{phase}")
        # Lines executed in the last context would not be reported otherwise.
        sys.monitoring.restart_events()
    if settings := os.environ.get(_VARIABLE):
        config = CoverageConfig.deserialize(settings)
        config.context = f"{item.nodeid}|child"
        os.environ[_VARIABLE] = config.serialize()
