"""Functions called on hosts: their arguments and results, their order among steps, and their errors."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import host_functions
import jax
import jax.numpy as jnp
import numpy as np
import preloaded
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P
from on_hosts import X

import pathways as pw
from pathways.runtime.clusters.connect import controller
from pathways.runtime.control.records.errors import HostLostError

pytestmark = pytest.mark.usefixtures("own_or_attached_workers")

ISLANDS = [pw.Island(devices_per_host=2), pw.Island(), pw.Island(hosts=2, devices_per_host=2)]
OPTIONS = pw.HostOptions(heartbeat=5, stall_report=0.3)


@pytest.fixture
def slices(devices):
    """Returns slices on one of two devices of a host, on a whole host, and on an island of two hosts."""
    pw.connect(islands=ISLANDS, options=OPTIONS)
    return [devices.add_slice((size,), ("x",), island=f"island{n}") for n, size in enumerate((2, 1, 4))]


def placed(slice, value=X, **kwargs):
    return pw.jit(lambda x: x * 1, devices=slice, **kwargs)(value)


@pytest.mark.feature("hosts", "hosts")
def test_on_hosts_calls_each_host_with_its_shards(slices):
    for n, slice in enumerate(slices):
        call = pw.on_hosts(host_functions.total, devices=slice, scale=2.0)
        results = call(placed(slice, out_shardings=P("x"))).result()
        own = [host.process.pid for host in controller().hosts if host.gang.number == n]
        assert [each["pid"] for each in results] == own
        assert sum(each["sum"] for each in results) == pytest.approx(2 * X.sum(), abs=1e-5)


@pytest.mark.feature("hosts", "hosts")
def test_on_hosts_computes_beside_steps_of_an_island(slices, devices):
    """All-reduces of functions would mix with those of steps if they shared a channel."""
    step = pw.jit(
        lambda x: x - x.sum(0, keepdims=True) * 1e-3,
        devices=slices[2],
        in_shardings=P("x"),
        out_shardings=P("x"),
    )
    computed = pw.on_hosts(host_functions.computed, devices=slices[2])
    alone = y = placed(slices[2], in_shardings=P("x"), out_shardings=P("x"))
    x, calls = y, []
    for _ in range(20):
        alone = step(alone)
    for _ in range(20):
        y = step(y)
        calls.append(computed(x))
    halves = [[pytest.approx(half.sum(), abs=1e-5), [4, 4]] for half in (X[:4], X[4:])]
    assert [call.result() for call in calls] == [halves] * 20
    np.testing.assert_array_equal(np.asarray(y), np.asarray(alone))
    whole = [pytest.approx(X.sum(), abs=1e-5), [8, 4]]
    assert computed(placed(slices[2])).result() == [whole] * 2
    # Rows 0, 1, 4 and 5 of one host.
    square = devices.add_slice((2, 2), ("x", "y"), island="island2")
    scattered = placed(square, in_shardings=P(("y", "x")), out_shardings=P(("y", "x")))
    with pytest.raises(
        pw.CallFailedError, match=r"host 2 \(island2\): .*float32\[8, 4\].* are not a block of it"
    ):
        pw.on_hosts(host_functions.computed, devices=square)(scattered).result()


@pytest.mark.feature("hosts", "hosts")
def test_on_hosts_gives_replicas_their_blocks_of_a_batch(slices, devices):
    replicated = pw.make_virtual_device_set(replicas=2).add_slice((1,), ("x",))
    front = pw.jit(lambda w, x: x @ w, devices=replicated)
    loss = jax.value_and_grad(lambda w, x: front(w, x).mean())
    step = (
        pw.program(lambda w, x: pw.accumulate(loss, 2)(w, x)).lower(np.eye(4, dtype=np.float32), X).compile()
    )
    w, x = step.place(np.eye(4, dtype=np.float32), X)
    computed = pw.on_hosts(host_functions.computed, devices=replicated)
    halves = [[pytest.approx(half.sum(), abs=1e-5), [4, 4]] for half in (X[:4], X[4:])]
    assert computed(x).result() == halves
    assert computed(w).result() == [[4.0, [4, 4]]] * 2
    # On all devices, hence also on those of the replicas.
    for number, count in ((0, 2), (1, 1), (2, 4)):
        for _ in range(count):
            other = devices.add_slice((1,), ("x",), island=f"island{number}", overlap=True)
            result = pw.on_hosts(host_functions.computed, devices=other)(x).result()
            assert result == [[pytest.approx(X.sum(), abs=1e-5), [8, 4]]]
    for each in replicated.replicas:
        pw.release(each)


@pytest.mark.feature("hosts", "hosts")
def test_on_hosts_may_return_its_arguments(slices):
    out = (jax.ShapeDtypeStruct(X.shape, X.dtype),) * 2
    increment = (
        pw.program(lambda x: pw.jit(lambda x: x + 1, devices=slices[1])(x), donate_argnums=0)
        .lower(X)
        .compile()
    )
    x = placed(slices[1])
    one, two = pw.on_hosts(host_functions.same, devices=slices[1], out=out)(x).result()
    for array in (x, one):
        np.testing.assert_array_equal(np.asarray(increment(array)), X + 1)
    np.testing.assert_array_equal(np.asarray(two), X)


@pytest.mark.feature("hosts", "hosts")
def test_on_hosts_sends_trees_keys_and_keywords(slices):
    call = pw.on_hosts("host_functions:described", devices=slices[1], words={"b": [1, (2, None)]})
    tree = {"w": (placed(slices[1]), jnp.ones(2)), "a": None}
    keys, dtype, shape, kind, noise, words = call(tree, jax.random.key(3)).result()[0]
    assert (keys, dtype, shape, kind) == (["a", "w"], "float32", [8, 4], "tuple")
    assert words == {"b": [1, [2, None]]}
    np.testing.assert_array_equal(np.float32(noise), jax.random.normal(jax.random.key(3), (2,)))


@pytest.mark.feature("hosts", "hosts")
def test_on_hosts_moves_arrays_of_another_slice(slices):
    result = pw.on_hosts(host_functions.total, devices=slices[0])(placed(slices[1])).result()
    assert result[0]["sum"] == pytest.approx(X.sum(), abs=1e-5)


@pytest.mark.feature("hosts", "hosts")
def test_on_hosts_creates_arrays_for_programs(slices):
    """Each host of an island returns its rows; without a sharding all devices have the whole array."""
    mesh = AbstractMesh((2,), ("x",))
    out = {
        "whole": jax.ShapeDtypeStruct((3,), jnp.int32),
        "part": jax.ShapeDtypeStruct((4, 2), jnp.float32, sharding=NamedSharding(mesh, P("x"))),
    }
    for slice in (slices[0], slices[2]):
        arrays = pw.on_hosts(host_functions.filled, devices=slice, out=out)(value=5.0).result()
        np.testing.assert_array_equal(np.asarray(arrays["whole"]), [5, 5, 5])
        rows = [5, 5, 6, 6] if slice is slices[2] else [5, 5, 5, 5]
        np.testing.assert_array_equal(np.asarray(arrays["part"]), np.float32([[n, n] for n in rows]))
        double = pw.jit(lambda x: 2 * x, devices=slice, in_shardings=P("x"))
        np.testing.assert_array_equal(np.asarray(double(arrays["part"]))[:, 0], 2 * np.float32(rows))
    key = pw.on_hosts(
        host_functions.key_of, devices=slices[1], out=jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    )(seed=3).result()
    noise = pw.jit(lambda key: jax.random.normal(key, (2,)), devices=slices[1])(key)
    np.testing.assert_array_equal(np.asarray(noise), jax.random.normal(jax.random.key(3), (2,)))


@pytest.mark.feature("hosts", "hosts")
def test_on_hosts_delays_only_steps_that_donate_its_arrays(slices, tmp_path):
    x = placed(slices[1])
    increment = (
        pw.program(lambda x: pw.jit(lambda x: x + 1, devices=slices[1])(x), donate_argnums=0)
        .lower(x)
        .compile()
    )
    other = placed(slices[1])
    call = pw.on_hosts(host_functions.wait_with, devices=slices[1], path=str(tmp_path / "go"))(x)
    np.asarray(increment(other))
    assert not call.done()
    after = increment(x)
    time.sleep(0.1)
    assert not after.is_ready()
    (tmp_path / "go").touch()
    np.testing.assert_array_equal(np.asarray(after), X + 1)
    assert call.result() == [pytest.approx(X.sum(), abs=1e-5)]


def test_on_hosts_keeps_the_order_of_calls(slices, tmp_path):
    add = pw.on_hosts(host_functions.append, devices=slices[1], path=str(tmp_path / "lines"))
    calls = [add(text=f"line {n}") for n in range(5)]
    assert [call.result() for call in calls] == [[None]] * 5
    assert (tmp_path / "lines").read_text().splitlines() == [f"line {n}" for n in range(5)]
    out = {"whole": jax.ShapeDtypeStruct((3,), jnp.int32), "part": jax.ShapeDtypeStruct((4, 2), jnp.float32)}
    filled = pw.on_hosts(host_functions.filled, devices=slices[1], out=out)(value=2.0)
    total = pw.on_hosts(host_functions.total, devices=slices[1])(filled.result()["part"])
    assert total.result()[0]["sum"] == 16


@pytest.mark.feature("hosts", "error")
def test_on_hosts_reports_exceptions_with_their_traceback(slices):
    kinds = {
        "host_functions.BadRow: row 17 is empty": "host_functions:fail",
        "SystemExit: 3": "host_functions:leave",
    }
    for text, name in kinds.items():
        with pytest.raises(pw.CallFailedError, match=rf"{name}: host 1 \(island1\) raised {text}") as error:
            pw.on_hosts(name, devices=slices[1])().result()
        assert 'host_functions.py", line' in str(error.value)
    out = jax.ShapeDtypeStruct((), jnp.int32)
    failed = pw.on_hosts(host_functions.fail, devices=slices[1], out=out)().result()
    with pytest.raises(pw.HostError, match="row 17 is empty"):
        np.asarray(placed(slices[1], failed))
    with pytest.raises(pw.CallFailedError, match="row 17 is empty"):
        failed.block_until_ready()
    np.testing.assert_array_equal(np.asarray(placed(slices[1])), X)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("surrogate", r"ValueError: a line of \\udcff"),
        ("path", "FileNotFoundError: .*no file"),
        ("number", r"OSError: \[Errno 100000000000000000000\] large"),
        ("note", "ValueError: an error without a message: its __str__ raised IndexError"),
        ("class", "Untold: an error without a message: its __str__ raised IndexError"),
    ],
)
def test_on_hosts_reports_exceptions_that_cannot_be_sent(slices, how, message):
    with pytest.raises((pw.CallFailedError, OSError), match=message):
        pw.on_hosts(host_functions.fail_untold, devices=slices[1])(how=how).result()


def test_on_hosts_keeps_the_island_when_one_host_fails(slices):
    pids = [host.process.pid for host in controller().hosts]
    out = jax.ShapeDtypeStruct((), jnp.int32)
    for kwargs in ({}, {"out": out}):
        with pytest.raises(pw.CallFailedError, match=r"host 3 \(island2\) raised .*row 17"):
            pw.on_hosts(host_functions.fail, devices=slices[2], host=1, **kwargs)().result()
    np.testing.assert_array_equal(np.asarray(placed(slices[2], in_shardings=P("x"))), X)
    assert [host.process.pid for host in controller().hosts] == pids


@pytest.mark.feature("hosts", "error")
@pytest.mark.parametrize("name", ["no_such_module:f", "host_functions:none", "host_functions:NOT_A_FUNCTION"])
def test_on_hosts_raises_import_errors(slices, name):
    module = name.partition(":")[0]
    with pytest.raises(ImportError, match=rf"host 1 \(island1\): .*{module}") as error:
        pw.on_hosts(name, devices=slices[1])().result()
    assert name != "no_such_module:f" or str(Path(host_functions.__file__).parent) in str(error.value)


def test_on_hosts_imports_changed_modules_again(slices, tmp_path, monkeypatch):
    """Functions named afterwards run the edited module; this process and its imports stay as they are."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("edited_module", "imported_module"):
        sys.modules.pop(name, None)
    module = tmp_path / "edited_module.py"
    module.write_text("from imported_module import TEXT\ndef text():\n    return TEXT\n")
    imported = tmp_path / "imported_module.py"
    imported.write_text("TEXT = 'first'\n")
    text = importlib.import_module("edited_module").text
    before = pw.on_hosts(text, devices=slices[1])
    assert before().result() == ["first"]
    imported.write_text("TEXT = 'edited'\n")
    assert before().result() == ["first"]
    assert pw.on_hosts(text, devices=slices[1])().result() == ["edited"]
    assert before().result() == ["edited"]
    named = tmp_path / "never_imported_here.py"
    for expected in ("one", "another"):
        named.write_text(f"def text():\n    return {expected!r}\n")
        assert pw.on_hosts("never_imported_here:text", devices=slices[1])().result() == [expected]


def test_on_hosts_returns_plain_values(slices):
    call = pw.on_hosts(host_functions.plain, devices=slices[1])
    assert call(value="nested").result() == [{"a": [1, None, True, "x"]}]
    wrong = {
        "array": r"the result\['loss'\]\[0\] is of type numpy.float32, which is not JSON; use float",
        "keys": "the result has the key 3",
        "object": "the result is of type builtins.module",
        "endless": r"the result\[0\].* is more than 64 levels deep",
        "huge": "the result is an integer of more than 1024 bits",
        "long": "the result is more than 16777216 bytes of JSON; return arrays, with out=",
    }
    for value, text in wrong.items():
        with pytest.raises(TypeError, match=rf"host 1 \(island1\): {text}"):
            call(value=value).result()
    for out in (
        jax.ShapeDtypeStruct((3,), jnp.float32),
        jax.ShapeDtypeStruct((5,), jnp.int32),
        {"a": jax.ShapeDtypeStruct((3,), jnp.int32)},
    ):
        failed = pw.on_hosts("host_functions:three", devices=slices[1], out=out)().result()
        with pytest.raises(pw.CallFailedError, match=r"the result is (int32\[3\]: expected|of type ndarray)"):
            jax.block_until_ready(failed)


def test_on_hosts_converts_numbers_without_loss(slices):
    """A Python number becomes an array of a dtype that represents it."""
    for value, dtype in ((2, jnp.float32), (True, jnp.int32), (1.5, jnp.bfloat16), (200, jnp.uint8)):
        out = jax.ShapeDtypeStruct((), dtype)
        array = pw.on_hosts(host_functions.same_value, devices=slices[1], out=out)(value=value).result()
        assert np.asarray(array) == value
    for value, dtype, message in (
        (1.5, jnp.int32, r"float64\[\]: expected int32\[\]"),
        (5, jnp.bool_, r"int64\[\]: expected bool\[\]"),
        (300, jnp.uint8, "300 out of bounds for uint8"),
    ):
        out = jax.ShapeDtypeStruct((), dtype)
        array = pw.on_hosts(host_functions.same_value, devices=slices[1], out=out)(value=value).result()
        with pytest.raises(pw.CallFailedError, match=message):
            array.block_until_ready()


def local():
    def inside():
        """Returns a function that is nested, so that it is found in no module."""

    return inside


@pytest.mark.feature("hosts", "error")
def test_on_hosts_refuses_local_functions_and_other_arguments(slices):
    for function in (lambda: 1, local(), 3, np, host_functions.BadRow("x")):
        with pytest.raises(TypeError, match="put it into a module"):
            pw.on_hosts(function, devices=slices[1])
    with pytest.raises(TypeError, match="cannot import __main__:total: put it into a module"):
        pw.on_hosts("__main__:total", devices=slices[1])
    for name in ("host_functions", "a b:c", ":f", "m:"):
        with pytest.raises(ValueError, match=r"expected package\.module:name"):
            pw.on_hosts(name, devices=slices[1])
    with pytest.raises(TypeError, match=r"named arguments\['x'\]\[1\] is of type jaxlib"):
        pw.on_hosts(host_functions.total, devices=slices[1], x=[0, jnp.ones(())])
    call = pw.on_hosts(host_functions.total, devices=slices[1])
    with pytest.raises(TypeError, match=r"argument 0\['a'\] is of type builtins\.float: expected arrays"):
        call({"a": 1.0})
    with pytest.raises(pw.CallFailedError, match="unexpected keyword argument 'self'"):
        call(X, self=1).result()
    with pytest.raises(TypeError, match=r"out is of type .*: expected arrays"):
        pw.on_hosts(host_functions.three, devices=slices[1], out=jnp.float32)()
    endless: list = []
    endless.append(endless)
    for wrong, text in (
        ((endless,), "more than 64 levels deep"),
        ((X, [[{"a": 1}]]), "of type builtins.int"),
    ):
        with pytest.raises(TypeError, match=text):
            call(*wrong)
    for wrong, text in ((endless, "more than 64 levels deep"), (10**5000, "integer of more than 1024 bits")):
        with pytest.raises(TypeError, match=text):
            call(X, scale=wrong)
    with pytest.raises(TypeError, match="is called between programs, not inside of one"):
        pw.program(lambda x: pw.jit(lambda x: x, devices=slices[1])(call(x).result()))(X)
    with pytest.raises(TypeError, match="needs devices="):
        pw.on_hosts(host_functions.total)()
    mesh = AbstractMesh((2,), ("y",))
    out = jax.ShapeDtypeStruct((4,), jnp.int32, sharding=NamedSharding(mesh, P("y")))
    with pytest.raises(ValueError, match="the axis 'y'"):
        pw.on_hosts(host_functions.total, devices=slices[1], out=out)


@pytest.mark.feature("hosts", "hosts")
def test_on_hosts_reports_the_line_of_a_slow_call(slices, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "pathways"):
        call = pw.on_hosts(host_functions.wait_for, devices=slices[0], path=str(tmp_path / "go"))()
        deadline = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.05)
    (tmp_path / "go").touch()
    assert call.result() == [0.0]
    report = caplog.messages[0]
    assert "of host_functions:wait_for has been running for" in report
    assert "host 0: has been running for" in report
    assert f"wait_for at {host_functions.__file__}:" in report


@pytest.mark.feature("hosts", "error")
def test_on_hosts_reports_a_host_that_dies(slices, tmp_path):
    """The victim is last: the other hosts need not wait for the new one."""
    call = pw.on_hosts(host_functions.wait_for, devices=slices[1], path=str(tmp_path / "never"))()
    os.kill(controller().hosts[1].process.pid, signal.SIGKILL)
    with pytest.raises(HostLostError, match=r"host_functions:wait_for: host 1 \(island1\) is lost"):
        call.result()
    again = pw.on_hosts(host_functions.plain, devices=slices[1])(value="number")
    assert again.result() == [2.5]


@pytest.mark.quick
@pytest.mark.not_attached
def test_on_hosts_runs_here_without_hosts(devices):
    pw.disconnect()
    slice = devices.add_slice((1,), ("x",))
    x = placed(slice)
    result = pw.on_hosts(host_functions.total, devices=slice)(x).result()
    assert result == [{"sum": pytest.approx(X.sum(), abs=1e-5), "pid": os.getpid()}]
    out = {"whole": jax.ShapeDtypeStruct((3,), jnp.int32), "part": jax.ShapeDtypeStruct((4, 2), jnp.float32)}
    arrays = pw.on_hosts(host_functions.filled, devices=slice, out=out)(value=1.0).result()
    assert arrays["part"].devices() == x.devices()
    out_same = (jax.ShapeDtypeStruct(X.shape, X.dtype),) * 2
    one, two = pw.on_hosts(host_functions.same, devices=slice, out=out_same)(x).result()
    for array in (x, one):
        array.delete()
    np.testing.assert_array_equal(two, X)
    with pytest.raises(pw.CallFailedError, match=r"host_functions:fail raised BadRow: row 17"):
        pw.on_hosts(host_functions.fail, devices=slice)().result()
    number = jax.ShapeDtypeStruct((), jnp.float32)
    array = pw.on_hosts(host_functions.number, devices=slice, out=number)().result()
    assert (array.dtype, float(array)) == (jnp.float32, 1.5)
    with pytest.raises(pw.CallFailedError, match="host_functions:leave raised SystemExit: 3"):
        pw.on_hosts(host_functions.leave, devices=slice)().result()
    with pytest.raises(ImportError, match=f"no_such_module:f: .*searched in .*{Path(__file__).parents[1]}"):
        pw.on_hosts("no_such_module:f", devices=slice)().result()
    with pytest.raises(TypeError, match=r"the result\['loss'\]"):
        pw.on_hosts(host_functions.plain, devices=slice)(value="array").result()
    with pytest.raises(TypeError, match=r"the result is of type int"):
        pw.on_hosts(host_functions.fail, devices=slice, host=7, out=out)().result()


@pytest.mark.not_attached
def test_on_hosts_finds_modules_beside_the_script(tmp_path):
    """Hosts do not have the folder of the script on their path by themselves."""
    (tmp_path / "beside.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "script.py").write_text(
        "import beside, json, pathways as pw\n"
        "pw.connect(hosts=1)\n"
        "slice = pw.make_virtual_device_set().add_slice(1, 'x')\n"
        "print(json.dumps(pw.on_hosts(beside.answer, devices=slice)().result()))\n"
    )
    done = preloaded.run(tmp_path / "script.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [42]
