"""Arrays that the server writes to files and reads again, and paths that it rejects."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorstore
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pathways.runtime.proxy.arrays.local_engine import LocalEngine
from pathways.runtime.proxy.arrays.placements import DTYPES, ArraySpec
from pathways.runtime.proxy.arrays.proxy_array import ProxyArray
from pathways.runtime.proxy.devices import ServedDevices
from pathways.runtime.proxy.loading.local_backend import LocalBackend
from pathways.runtime.proxy.persistence import FileJob, parse_read, parse_write
from pathways.runtime.proxy.wire import descriptors
from pathways.runtime.proxy.wire.statuses import StatusError
from pathways.runtime.resources.folders import PermittedFolders, descend
from pathways.runtime.xla import ifrt

ENGINE = LocalEngine()

MESSAGES = descriptors.messages()
DEVICES = jax.devices("cpu")
MESH = jax.make_mesh((4, 2), ("x", "y"), devices=DEVICES)
TURNED = jax.make_mesh((2, 4), ("x", "y"), devices=DEVICES[::-1])


@pytest.fixture
def served(tmp_path: Path) -> ServedDevices:
    return ServedDevices(
        LocalBackend(DEVICES), MESSAGES, folders=PermittedFolders([tmp_path], "see pw-proxy --files")
    )


def now(work: Callable[[], None]) -> None:
    """Runs a function at once, which a server would run in another thread."""
    work()


def described(folder: Path | str, name: str, sharding: NamedSharding, shape: Any, seconds: float = 60) -> Any:
    """Returns the fields that requests to write and to read share, as `pathwaysutils` creates them."""
    rank = len(shape["dimensions"] if isinstance(shape, dict) else shape)
    hlo = sharding._to_xla_hlo_sharding(rank).to_proto().SerializeToString()
    return {
        "b64_location": base64.b64encode(os.fsencode(folder)).decode(),
        "b64_name": base64.b64encode(name.encode()).decode(),
        "b64_hlo_sharding_string": base64.b64encode(hlo).decode(),
        "devices": {"device_ids": [device.id for device in sharding.mesh.devices.flat]},
        "shape": shape,
        "timeout": {"seconds": int(seconds), "nanos": int(seconds % 1 * 1e9)},
    }


def write(
    served: ServedDevices,
    folder: Path | str,
    values: dict[str, np.ndarray],
    sharding: NamedSharding,
    **more: Any,
) -> FileJob:
    requests, arguments = [], []
    for name, value in values.items():
        request = described(folder, name, sharding, value.shape, **more)
        requests.append(request)
        hlo = base64.b64decode(request["b64_hlo_sharding_string"])
        placement = served.hlo_placement(request["devices"]["device_ids"], hlo, None)
        indices = placement.sharding.devices_indices_map(value.shape)
        shards = [value[indices[device]] for device in placement.devices]
        arguments.append(ENGINE.make(ArraySpec(value.dtype, value.shape, placement), shards))
    return parse_write(served, {"write_requests": requests}).start(arguments, now)


def read(
    served: ServedDevices, folder: Path | str, wanted: dict[str, tuple[str, Any]], sharding: NamedSharding
) -> FileJob:
    requests = [
        described(folder, name, sharding, {"xla_primitive_type_str": kind, "dimensions": shape})
        for name, (kind, shape) in wanted.items()
    ]
    return parse_read(served, {"read_requests": requests}).start((), now)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def value_of(result: ProxyArray) -> np.ndarray:
    """Returns the whole value of an array."""
    spec, _ = result.read()
    whole = np.empty(spec.shape, spec.dtype)
    indices = spec.placement.sharding.devices_indices_map(spec.shape)
    for device, shard in zip(spec.placement.devices, ENGINE.shards_of(result), strict=True):
        assert shard.devices() == {device}
        whole[indices[device]] = ifrt.host_value(shard)
    return whole


def test_arrays_are_restored_in_another_sharding(served: ServedDevices, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {
        f"layer.{kind}": rng.integers(0, 2, (8, 16)).astype(dtype)
        for kind, dtype in DTYPES.items()
        if kind in ("BF16", "F32", "F64", "S8", "S64", "U16", "PRED")
    }
    write(served, tmp_path / "new" / "step", values, NamedSharding(MESH, P("x", "y"))).wait()
    wanted = {name: (name.removeprefix("layer."), (8, 16)) for name in values}
    job = read(served, tmp_path / "new" / "step", wanted, NamedSharding(TURNED, P("y")))
    job.wait()
    for result, value in zip(job.results, values.values(), strict=True):
        got = value_of(result)
        assert (got.dtype, got.tobytes()) == (value.dtype, value.tobytes())
    # Nothing else is left there.
    assert names_in(tmp_path / "new" / "step") == sorted(values)


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)])
def test_scalars_and_empty_arrays(served: ServedDevices, tmp_path: Path, shape: tuple[int, ...]) -> None:
    value = np.full(shape, 3, np.float32)
    write(served, tmp_path, {"a": value}, NamedSharding(MESH, P())).wait()
    job = read(served, tmp_path, {"a": ("F32", shape)}, NamedSharding(TURNED, P()))
    job.wait()
    assert value_of(job.results[0]).tobytes() == value.tobytes()


def test_files_have_the_format_of_zarr(served: ServedDevices, tmp_path: Path) -> None:
    value = np.zeros((8, 2), np.int32)
    write(served, tmp_path, {"outer/a": value}, NamedSharding(MESH, P("x"))).wait()
    assert len(list((tmp_path / "outer" / "a").iterdir())) == 5
    kvstore = {"driver": "file", "path": str(tmp_path / "outer" / "a")}
    store = tensorstore.open({"driver": "zarr", "kvstore": kvstore}).result()
    np.testing.assert_array_equal(store.read().result(), value)


def test_a_save_replaces_an_older_one(served: ServedDevices, tmp_path: Path) -> None:
    sharding = NamedSharding(MESH, P())
    for value in (1, 2):
        write(served, tmp_path, {"a": np.full(4, value, np.float32)}, sharding).wait()
    job = read(served, tmp_path, {"a": ("F32", (4,))}, sharding)
    np.testing.assert_array_equal(value_of(job.results[0]), [2, 2, 2, 2])
    assert names_in(tmp_path) == ["a"]


def test_a_saved_array_may_be_donated_at_once(served: ServedDevices, tmp_path: Path) -> None:
    later: list[Callable[[], None]] = []
    value = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(MESH, P("x")))
    request = described(tmp_path, "a", NamedSharding(MESH, P("x")), (8,))
    hlo = base64.b64decode(request["b64_hlo_sharding_string"])
    placement = served.hlo_placement(range(8), hlo, None)
    argument = ProxyArray(ArraySpec(np.dtype(np.float32), (8,), placement), value)
    job = parse_write(served, {"write_requests": [request]}).start([argument], later.append)
    value.delete()
    assert not job.is_ready
    later[0]()
    job.wait()
    got = read(served, tmp_path, {"a": ("F32", (8,))}, NamedSharding(MESH, P())).results[0]
    np.testing.assert_array_equal(value_of(got), np.arange(8))


def test_an_array_that_is_read_is_waited_for(served: ServedDevices, tmp_path: Path) -> None:
    sharding = NamedSharding(MESH, P())
    write(served, tmp_path, {"a": np.ones(4, np.float32)}, sharding).wait()
    request = described(tmp_path, "a", sharding, {"xla_primitive_type_str": "F32", "dimensions": (4,)})
    program = parse_read(served, {"read_requests": [request]})
    allowed = threading.Event()

    def run(work: Callable[[], None]) -> None:
        threading.Thread(target=lambda: (allowed.wait(), work())).start()

    job = program.start((), run)
    assert not job.results[0].is_ready
    threading.Timer(0.05, allowed.set).start()
    np.testing.assert_array_equal(value_of(job.results[0]), [1, 1, 1, 1])
    job.wait()


def test_a_session_does_not_wait_for_files_at_its_end(served: ServedDevices, tmp_path: Path) -> None:
    request = described(
        tmp_path, "a", NamedSharding(MESH, P()), {"xla_primitive_type_str": "F32", "dimensions": (4,)}
    )
    job = parse_read(served, {"read_requests": [request]}).start((), lambda work: None)
    job.cancel()
    for wait in (job.wait, job.results[0].wait):
        with pytest.raises(StatusError, match="CANCELLED: the session has ended"):
            wait()


def test_a_timeout(served: ServedDevices, tmp_path: Path) -> None:
    def late(work: Callable[[], None]) -> None:
        time.sleep(0.1)
        work()

    request = described(
        tmp_path, "a", NamedSharding(MESH, P()), {"xla_primitive_type_str": "F32", "dimensions": (4,)}, 0.05
    )
    write(served, tmp_path, {"a": np.ones(4, np.float32)}, NamedSharding(MESH, P())).wait()
    job = parse_read(served, {"read_requests": [request]}).start((), late)
    with pytest.raises(
        StatusError, match=r"ABORTED: array 'a' in folder '.*': took longer than its timeout of 0.05 s"
    ):
        job.wait()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"b": ("F32", (4,))}, r"FAILED_PRECONDITION: array 'b' in folder .*: No such file or directory"),
        ({"a": ("F32", (8,))}, r"INVALID_ARGUMENT: array 'a' in folder .*: has the shape \(4,\), not \(8,\)"),
        ({"text": ("F32", (4,))}, r"FAILED_PRECONDITION: array 'text' in folder .*: Error opening"),
    ],
)
def test_an_array_that_cannot_be_read(
    served: ServedDevices, tmp_path: Path, wanted: dict[str, Any], message: str
) -> None:
    write(served, tmp_path, {"a": np.ones(4, np.float32)}, NamedSharding(MESH, P())).wait()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / ".zarray").write_text("no metadata")
    job = read(served, tmp_path, wanted, NamedSharding(MESH, P()))
    for wait in (job.wait, job.results[0].wait):
        with pytest.raises(StatusError, match=message):
            wait()


def test_an_error_of_one_array_is_not_that_of_another(served: ServedDevices, tmp_path: Path) -> None:
    write(served, tmp_path, {"a": np.ones(4, np.float32)}, NamedSharding(MESH, P())).wait()
    job = read(served, tmp_path, {"b": ("F32", (4,)), "a": ("F32", (4,))}, NamedSharding(MESH, P()))
    np.testing.assert_array_equal(value_of(job.results[1]), [1, 1, 1, 1])
    with pytest.raises(StatusError, match="'b'"):
        job.wait()


@pytest.mark.parametrize(
    "path", ["{0}/..", "{0}/a/../..", "/", "relative", "{1}", "{0}/link", "{0}/link/new", ""]
)
def test_other_folders_are_refused(served: ServedDevices, tmp_path: Path, path: str) -> None:
    other = tmp_path.parent / f"{tmp_path.name} other"
    other.mkdir()
    (tmp_path / "link").symlink_to(other)
    path = path.format(tmp_path, other)
    with pytest.raises(StatusError) as raised:
        write(served, path, {"a": np.ones(4, np.float32)}, NamedSharding(MESH, P()))
    assert raised.value.args[0] == (
        f"PERMISSION_DENIED: path {path!r} is not in a folder that the server may use; see pw-proxy --files"
    )
    assert not list(other.iterdir())


def test_a_link_inside_of_a_folder_is_the_same_folder(served: ServedDevices, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write(served, tmp_path / "link", {"a": np.ones(4, np.float32)}, NamedSharding(MESH, P())).wait()
    assert names_in(tmp_path / "there") == ["a"]


@pytest.mark.parametrize("name", ["..", "", "a/../../b", "/etc/passwd", "a//b"])
def test_names_outside_of_the_folder_are_refused(served: ServedDevices, tmp_path: Path, name: str) -> None:
    with pytest.raises(StatusError, match="PERMISSION_DENIED: invalid name"):
        write(served, tmp_path, {name: np.ones(4, np.float32)}, NamedSharding(MESH, P()))


def test_links_in_place_of_arrays_are_refused(served: ServedDevices, tmp_path: Path) -> None:
    sharding = NamedSharding(MESH, P())
    other = tmp_path.parent / f"{tmp_path.name} other"
    other.mkdir()
    (other / "secret").write_bytes(b"0123")
    write(served, tmp_path, {"a": np.ones(4, np.uint8), "b": np.ones(4, np.uint8)}, sharding).wait()
    # A file in an array, and the folder of an array.
    (tmp_path / "a" / "0").unlink()
    (tmp_path / "a" / "0").symlink_to(other / "secret")
    (tmp_path / "b").rename(other / "b")
    (tmp_path / "b").symlink_to(other / "b")
    job = read(served, tmp_path, {"a": ("U8", (4,)), "b": ("U8", (4,))}, sharding)
    for result in job.results:
        with pytest.raises(StatusError, match=r"PERMISSION_DENIED: .*the server follows no link"):
            result.wait()
    # Writing replaces the link, not its target.
    write(served, tmp_path, {"b": np.zeros(4, np.uint8)}, sharding).wait()
    assert not (tmp_path / "b").is_symlink()
    assert (other / "b").is_dir()


def test_a_link_that_appears_after_a_path_was_resolved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").symlink_to("/")
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(PermissionError, match="the server follows no link: 'b'"):
        descend(folder, ["a", "b"], create=True)


def test_without_files_every_path_is_refused(tmp_path: Path) -> None:
    served = ServedDevices(LocalBackend(DEVICES), MESSAGES)
    with pytest.raises(StatusError, match=r"PERMISSION_DENIED: .*; see pw-proxy --files"):
        write(served, tmp_path, {"a": np.ones(4, np.float32)}, NamedSharding(MESH, P()))


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder '.*none'"):
        PermittedFolders([tmp_path / "none"])


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": {"xla_primitive_type_str": "STRING", "dimensions": [4]}},
        {"shape": {"xla_primitive_type_str": "F32", "dimensions": [-1]}},
        {"shape": {"xla_primitive_type_str": "F32", "dimensions": ["x"]}},
        {"shape": None},
        {"b64_name": "%"},
        {"b64_hlo_sharding_string": base64.b64encode(b"no sharding").decode()},
        {"devices": {"device_ids": [99]}},
        {"devices": {"device_ids": []}},
        {"timeout": {}},
        {"timeout": {"seconds": "long"}},
    ],
)
def test_invalid_requests(served: ServedDevices, tmp_path: Path, fields: dict[str, Any]) -> None:
    shape = {"xla_primitive_type_str": "F32", "dimensions": (4,)}
    request = described(tmp_path, "a", NamedSharding(MESH, P()), shape) | fields
    with pytest.raises(StatusError, match="INVALID_ARGUMENT"):
        parse_read(served, {"read_requests": [request]})
