"""A test that hangs on hosts reports why, and fails: the plugin `timeouts` of test/support."""

from __future__ import annotations

from pathlib import Path

import preloaded
import pytest

pytestmark = pytest.mark.process

HANGS = """
import host_functions
import pytest

import pathways as pw

pw.connect(hosts=1)
slice = pw.make_virtual_device_set().add_slice((1,), ("x",))


@pytest.mark.timeout(8, method="thread")
def test_hangs():
    pw.on_hosts(host_functions.wait_for, devices=slice, path="never")().result()


def test_after_it():
    pass
"""


def test_timeouts_fail_a_test_that_hangs_on_hosts(tmp_path):
    (tmp_path / "test_one.py").write_text(HANGS)
    done = preloaded.run(
        "-c",
        f"import sys; sys.path.insert(0, {str(Path(preloaded.__file__).parent)!r})\n"
        "import pytest; sys.exit(pytest.main(['-p', 'timeouts', '-p', 'no:cacheprovider', 'test_one.py']))",
        cwd=tmp_path,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "HostLostError: DATA_LOSS: host_functions:wait_for: host 0 (island0) is lost" in done.stdout
    (path,) = (tmp_path / "build/test/timeouts").iterdir()
    text = path.read_text()
    assert path.name == "test_one.test_hangs.txt"
    assert f"in wait_for at {Path(preloaded.__file__).parent}/host_functions.py" in text
    assert "in test_hangs" in text
    assert text in done.stdout
