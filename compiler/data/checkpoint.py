"""Checkpoints: trees of arrays in folders of Orbax, one for each step.

`save` writes `path/<step>` in the background and `restore` reads it, straight onto the slices of a program.
Orbax reads and writes the same folders without us. It is an extra: `pip install 'pathways-mlir[checkpoint]'`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
import functools
import json
import os
from collections.abc import Awaitable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from pathways.compiler.backends.placed_type import PlacedType
from pathways.compiler.data.host_checkpoints import is_written_there, saved_by_hosts, wanted_on_hosts
from pathways.compiler.data.saving import PendingSave, Saving, save_error
from pathways.compiler.stages import Bound
from pathways.dialect.spelling import renamed_keywords
from pathways.runtime.clusters.connect import controller
from pathways.runtime.data.host_files import HostSave, RestoredLeaf, SnapshotArray
from pathways.runtime.hosts.client.array import Array
from pathways.runtime.hosts.client.host_session import HostSession
from pathways.runtime.hosts.worker.call_runner import holds
from pathways.runtime.xla import pjrt
from pathways.runtime.xla.tracebacks import boundary

_STATE, _DATA = "state", "data"
"""Orbax's names for the tree and for the position of the input."""

_REMOVED = ".removed"
"""Suffix of the names of checkpoints that are being removed."""

_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))
"""The dtypes that arrays on devices have in JAX under `jax_enable_x64` alone."""

_AS_ARRAYS = (bool, complex, np.generic)
"""Numbers that are saved as arrays without dimensions: Orbax rejects them, or does not know their types."""


@boundary
@renamed_keywords(keep="max_to_keep")
def save(
    path: str | os.PathLike[str],
    state: Any,
    step: int,
    *,
    data: Any = None,
    max_to_keep: int | None = None,
    compress: bool | None = None,
) -> Saving:
    """Writes a checkpoint to `path/<step>`, and returns before it is written.

    The folder appears at once when all of it is written; a process that exits before, for any reason,
    leaves the older checkpoints. The end of the program waits for saves in progress, and so do the next save,
    `restore`, `latest`, `pw.disconnect`, and a `pw.connect` to other devices. A program whose last save
    failed exits with 1, unless `wait` or a later call has raised the error. The arrays may be donated and
    deleted at once. On CPU a step that donates them while they are written copies them, which takes time and,
    for as long as the save, their memory once more. NumPy arrays are copied before it returns; memory of
    NumPy that an array on a CPU device uses, as by `jax.device_put`, may be changed after `wait`.

    Args:
      path: the folder of all checkpoints of a run.
      state: a tree of arrays, typed keys, numbers and strings. Each host copies its shards of arrays on
        hosts, and writes them itself: all hosts have to see the folder.
      step: the number of the checkpoint.
      data: an iterator whose position is saved with it: one of Grain, or `pw.prefetch` of one, or any object
        with a `get_state()` that JSON can represent.
      max_to_keep: the number of checkpoints that stay, with the highest steps; by default all. Others are
        removed when this one is written and waited for, such as by the next save; until then one more stays.
      compress: whether arrays are compressed; by default as Orbax does, which is with zstd. That takes some
        seconds of CPU time a GiB, and gains little on weights.

    Returns:
      The save in progress; `wait` returns when it is complete.

    Raises:
      ImportError: Orbax is not installed.
      TypeError: a leaf cannot be saved; names it. Or `data` has no position, or `step` or `max_to_keep` is
        no whole number.
      ValueError: a leaf has no elements, two have the same name once their keys are joined with dots, the
        tree has no leaves, the path has brackets, the step is negative, or `max_to_keep` below one.
      FileExistsError: the checkpoint exists already.
      OSError: the folder cannot be created, or an earlier save failed.
    """
    orbax = _orbax()
    if isinstance(step, bool) or not isinstance(step, int | np.integer):
        raise TypeError(f"pw.checkpoint: the step must be a whole number, got {step!r}")
    if step < 0:
        raise ValueError(f"pw.checkpoint: the step must not be negative, got {step}")
    if max_to_keep is not None and not isinstance(max_to_keep, int | np.integer):
        raise TypeError(f"pw.checkpoint: max_to_keep must be a whole number, got {max_to_keep!r}")
    if max_to_keep is not None and max_to_keep < 1:
        raise ValueError(f"pw.checkpoint: max_to_keep must be at least 1, got {max_to_keep}")
    folder = _folder(path) / str(int(step))
    _check_folder(folder)
    _check_names(state)
    hosts = _hosts_for(path)
    is_stored = any(isinstance(leaf, SnapshotArray) for leaf in jax.tree.leaves(state))
    # If the tree has arrays in the memory of hosts, this process writes arrays on devices.
    saved = functools.partial(_saved, None if is_stored else hosts)
    items: dict[str, Any] = {_STATE: jax.tree_util.tree_map_with_path(saved, state)}
    if not jax.tree.leaves(state):
        raise ValueError("pw.checkpoint: the tree to save has no leaves")
    if data is not None:
        # Before the first write: threads continue to write after a later failure.
        items[_DATA] = _InputPosition(data, _text(data))
    with _pending.starting:
        _pending.wait()
        # After the wait: the pending save may be of this step, and its folder appears when it is complete.
        if folder.exists():
            raise FileExistsError(f"pw.checkpoint: there is a checkpoint of step {step} already: {folder}")
        if "://" not in os.fspath(path):
            folder.parent.mkdir(parents=True, exist_ok=True)
        items[_STATE], of_hosts = saved_by_hosts(items[_STATE], hosts)
        try:
            with _context(orbax, compress, of_hosts):
                response = orbax.save_checkpointables_async(folder, items)
        except BaseException as error:
            if of_hosts is not None:
                of_hosts.drop()
            if isinstance(error, OSError):
                raise save_error(int(step), str(folder), error) from None
            raise
        remove_old = (
            None if max_to_keep is None else functools.partial(_remove_old, folder.parent, max_to_keep)
        )
        saving = Saving(int(step), str(folder), response, remove_old, of_hosts)
        _pending.add(saving)
    return saving


@boundary
def restore(
    path: str | os.PathLike[str],
    like: Any = None,
    *,
    step: int | None = None,
    data: Any = None,
    program: Bound | None = None,
    argument: str | None = None,
    partial: bool = False,
) -> Any:
    """Reads a checkpoint onto the devices that a program expects it on.

    Each device gets its shard from the file, whatever the sharding was when it was saved. Arrays of 64 bits
    on devices of this process are read as a whole first.

    Args:
      path: the folder of all checkpoints of a run.
      like: a tree of the same structure, of arrays or of `jax.ShapeDtypeStruct`s with shardings, such as the
        `out_info` of a compiled program. For arrays on hosts, or such types, each host reads its shards. A
        leaf without a sharding becomes an array of NumPy: put it on a slice with `place` of a program. None
        with `program`.
      step: the step; by default the latest.
      data: an iterator that is moved to the position of the checkpoint, or an input of `pw.on_hosts`.
      program: a compiled program that takes the tree, which is restored onto its slices.
      argument: the name of the argument of `program`.
      partial: whether `like` may have fewer leaves than the checkpoint, which are all that is read, and
        arrays of floats (or complex numbers) of another dtype, to which they are converted.

    Returns:
      The tree.

    Raises:
      ImportError: Orbax is not installed.
      FileNotFoundError: the checkpoint does not exist.
      OSError: an earlier save failed.
      ValueError: its leaves differ from the leaves of `like` in name, shape or type; names the first. Or it
        has no position, or, with `partial`, no list of its leaves.
      TypeError: `data` has no position.
    """
    orbax = _orbax()
    if (like is None) == (program is None) or (program is None) != (argument is None):
        raise TypeError("pw.checkpoint: expected like=, or both program= and argument=")
    if program is not None:
        if not isinstance(program, Bound):
            raise TypeError(f"pw.checkpoint: program must be compiled, got {type(program).__name__}")
        assert argument is not None
        like = program.argument_info(argument)
    if data is not None and not hasattr(data, "set_state"):
        raise TypeError(
            f"pw.checkpoint: {type(data).__name__} has no set_state(); restore the position of the input of "
            "pw.prefetch before it is created"
        )
    _pending.wait()
    hosts = _hosts_for(path)
    folder = _folder(path) / str(_chosen(path, step))
    saved = orbax.metadata(folder).metadata
    _check_alike(saved, like, str(folder), partial)
    request = jax.tree.map(functools.partial(_request_for, hosts), like)
    if partial:
        request = _as_in_file(request, saved)
    if any(isinstance(leaf, RestoredLeaf) for leaf in jax.tree.leaves(request)):
        from pathways.compiler.data.orbax_handlers import restored_by_hosts

        tree = restored_by_hosts(folder, request)
    else:
        tree = orbax.load(folder, request)
    if data is not None:
        if not (folder / _DATA).exists():
            raise ValueError(f"pw.checkpoint: {folder} has no position of an input")
        orbax.load_checkpointables(folder, {_DATA: _InputPosition(data)})
    if partial:
        tree = _as_in_tree(like, tree)
    return jax.tree.map(_restored, like, tree)


@boundary
def latest(path: str | os.PathLike[str]) -> int | None:
    """Returns the last step with a complete checkpoint; None if there is none.

    It waits for a save in progress.

    Args:
      path: the folder of all checkpoints of a run, which need not exist.

    Raises:
      ImportError: Orbax is not installed.
      OSError: an earlier save failed.
    """
    _pending.wait()
    return max(_steps(path), default=None)


def steps(path: str | os.PathLike[str]) -> list[int]:
    """Returns the steps of all complete checkpoints, ascending; see `latest`."""
    _pending.wait()
    return _steps(path)


def check(path: str | os.PathLike[str], state: Any) -> None:
    """Checks that `save` accepts a tree, as far as that is known without values of arrays on hosts.

    Raises:
      TypeError, ValueError: it does not; see `save`.
    """
    _orbax()
    _check_folder(_folder(path))
    _check_names(state)
    for at, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not isinstance(leaf, Array):
            _saved(None, at, leaf)


def set_aside(path: str | os.PathLike[str], step: int) -> None:
    """Renames a checkpoint that cannot be read to `<step>.damaged`, so that another one may have its step."""
    folder = _folder(path)
    # An earlier one may have that name.
    (folder / f"{step}.damaged").rmtree(missing_ok=True)
    if (folder / str(step)).exists():
        (folder / str(step)).rename(folder / f"{step}.damaged")


class OtherTreeError(ValueError):
    """Error of a checkpoint with other leaves than the requested ones."""


def _check_folder(folder: Any) -> None:
    """Rejects a folder whose name Orbax takes for a pattern."""
    if not fnmatch.fnmatchcase(str(folder), str(folder)):
        raise ValueError(f"pw.checkpoint: {folder} has brackets, which Orbax takes for a pattern of names")


def _check_names(state: Any) -> None:
    """Rejects two leaves that Orbax would write to one place: it joins their keys with dots."""
    paths: dict[str, Any] = {}
    for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if (other := paths.setdefault(name, path)) is not path:
            first, second = (f"state{jax.tree_util.keystr(each)}" for each in (other, path))
            raise ValueError(
                f"pw.checkpoint: {first} and {second} would both be saved as {name!r}; rename one"
            )


class _HasState(Protocol):
    def get_state(self) -> Any: ...
    def set_state(self, state: Any) -> None: ...


class _InputPosition:
    """Position of an iterator as Orbax saves and loads it, in the files of Grain.

    Args:
      data: the iterator.
      text: the position to save.
    """

    def __init__(self, data: _HasState, text: str = "") -> None:
        self._data = data
        self._text = text

    async def save(self, directory: Any) -> Awaitable[None]:
        """Returns an awaitable that writes the position."""

        async def write() -> None:
            folder = await directory.await_creation()
            await asyncio.to_thread((folder / self._name()).write_text, self._text)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Returns an awaitable that moves the iterator there."""

        async def read() -> None:
            text = await asyncio.to_thread((directory / self._name()).read_text)
            # A DataLoader of Grain has its position as bytes.
            is_bytes = isinstance(self._data.get_state(), bytes)
            self._data.set_state(text.encode() if is_bytes else json.loads(text))

        return read()

    def _name(self) -> str:
        return f"process_{jax.process_index()}-of-{jax.process_count()}.json"


_pending = PendingSave()


def _orbax() -> Any:
    try:
        import orbax.checkpoint.experimental.v1 as orbax

        from pathways.compiler.data.orbax_handlers import filter_log
    except ImportError as error:
        raise ImportError(
            "pw.checkpoint needs orbax-checkpoint: pip install 'pathways-mlir[checkpoint]'"
        ) from error
    filter_log(_pending.is_active)
    return orbax


def _folder(path: str | os.PathLike[str]) -> Any:
    """Returns the folder, local or on storage that Orbax writes to, such as gs://."""
    from etils import epath

    try:
        folder = epath.Path(path)
    except KeyError as error:
        raise ValueError(f"pw.checkpoint: {path}: nothing here reads {error.args[0]} paths") from None
    return folder if "://" in os.fspath(path) else folder.absolute()


def _hosts_for(path: str | os.PathLike[str]) -> HostSession | None:
    """Returns the hosts that read and write a path themselves; None for storage other than files."""
    return None if "://" in os.fspath(path) else controller()


def _context(orbax: Any, compress: bool | None, of_hosts: HostSave | None) -> Any:
    """Returns the context in which Orbax writes."""
    if of_hosts is not None:
        from pathways.compiler.data.orbax_handlers import context_of_hosts

        context = context_of_hosts(compress=compress)
    else:
        context = orbax.Context()
        if compress is not None:
            context.array.saving.use_compression = compress
    # In the background, an error of it would leave threads that wait for the folder, for minutes.
    context.asynchronous.create_directories_asynchronously = False
    return context


def _steps(path: str | os.PathLike[str]) -> list[int]:
    orbax = _orbax()
    folder = _folder(path)
    if not folder.exists():
        return []
    return sorted(
        int(file.name)
        for file in folder.iterdir()
        if file.name.isdecimal() and orbax.is_orbax_checkpoint(file)
    )


def _remove_old(folder: Any, max_to_keep: int) -> None:
    """Removes all checkpoints but the last ones, and the remains of an earlier removal.

    A renamed folder is not a checkpoint, so the process may exit at any time.
    """
    for step in _steps(folder)[:-max_to_keep]:
        (folder / str(step)).rename(folder / f"{step}{_REMOVED}")
    for file in list(folder.iterdir()):
        if file.name.endswith(_REMOVED):
            file.rmtree(missing_ok=True)


def _chosen(path: str | os.PathLike[str], step: int | None) -> int:
    steps = _steps(path)
    if not steps:
        raise FileNotFoundError(f"pw.checkpoint: there is no checkpoint in {_folder(path)}")
    if step is None:
        return steps[-1]
    if step not in steps:
        raise FileNotFoundError(
            f"pw.checkpoint: there is no checkpoint of step {step} in {_folder(path)}, only of "
            f"{', '.join(map(str, steps))}"
        )
    return step


def _text(data: Any) -> str:
    """Returns the position of an iterator as JSON."""
    if not hasattr(data, "get_state"):
        raise TypeError(
            f"pw.checkpoint: {type(data).__name__} has no get_state(), so its position cannot be saved"
        )
    position = data.get_state()
    try:
        return position.decode() if isinstance(position, bytes) else json.dumps(position, indent=4)
    except (TypeError, ValueError) as error:
        kind = type(data).__name__
        raise TypeError(f"pw.checkpoint: the position of {kind} is not JSON: {error}") from None


def _saved(hosts: HostSession | None, path: Any, leaf: Any) -> Any:
    """Returns a leaf as Orbax accepts it; a leaf that hosts write is unchanged."""
    subject = f"pw.checkpoint: state{jax.tree_util.keystr(path)}"
    if isinstance(leaf, Array | jax.Array) and leaf.is_deleted():
        raise ValueError(f"{subject} has been deleted; it was donated to an earlier call")
    if isinstance(leaf, Array) and not is_written_there(leaf, hosts):
        data = leaf.fetch()
        # NumPy has no keys.
        leaf = _with_type(leaf.aval, jax.numpy.asarray(data)) if _is_key(leaf.dtype) else data
    elif isinstance(leaf, _AS_ARRAYS):
        leaf = np.asarray(leaf)
    if isinstance(leaf, Array | SnapshotArray | jax.Array | np.ndarray):
        if not leaf.size:
            raise ValueError(f"{subject} of shape {leaf.shape} has no elements, and Orbax saves none")
        if _is_key(leaf.dtype) or leaf.dtype == bool or jax.dtypes.issubdtype(leaf.dtype, np.number):
            return leaf
        raise TypeError(f"{subject} has the dtype {leaf.dtype}, which is not a number")
    if isinstance(leaf, int) and not -(2**63) <= leaf < 2**63:
        raise ValueError(f"{subject} is {leaf}, which has more than 64 bits")
    if isinstance(leaf, int | float | str):
        return leaf
    raise TypeError(f"{subject} is a {type(leaf).__name__}, not an array or a number")


def _request_for(hosts: HostSession | None, leaf: Any) -> Any:
    """Returns the request to Orbax for a leaf."""
    on_hosts = wanted_on_hosts(leaf, hosts)
    if on_hosts is not None:
        return on_hosts
    if isinstance(leaf, _AS_ARRAYS):
        return np.asarray(leaf)
    if not hasattr(leaf, "shape"):
        return leaf
    sharding = _sharding(leaf)
    # Orbax creates arrays in its threads, where x64 may be off although it is on here.
    if not _is_key(leaf.dtype) and (sharding is None or leaf.dtype in _WIDE):
        # Of this shape, without its memory.
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    here = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)


def _sharding(leaf: Any) -> Any:
    """Returns the requested sharding on devices of this process of a leaf; None for others."""
    return None if isinstance(leaf, Array | PlacedType) else getattr(leaf, "sharding", None)


def _restored(like: Any, leaf: Any) -> Any:
    """Returns a leaf as it was saved, from Orbax's result."""
    if isinstance(like, np.generic):
        return leaf[()]
    if isinstance(like, _AS_ARRAYS):
        return type(like)(leaf)
    if isinstance(leaf, np.ndarray) and (sharding := _sharding(like)) is not None:
        with jax.enable_x64(True):
            leaf = jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and getattr(like, "weak_type", False):
        # Programs distinguish them, and files do not.
        return _with_type(jax.core.ShapedArray(leaf.shape, leaf.dtype, weak_type=True), leaf)
    return leaf


def _with_type(aval: Any, array: jax.Array) -> Any:
    """Returns an array with the same buffers, as typed keys or weakly typed."""
    return pjrt.rewrap(aval, array.sharding)(array)


def _check_alike(metadata: Any, like: Any, folder: str, partial: bool) -> None:
    """Rejects leaves that the checkpoint does not have, or has with another type."""
    if metadata is None:
        if partial:
            raise ValueError(
                f"pw.checkpoint: {folder} does not say which leaves it has, so partial=True cannot choose "
                "from them; give `like` all leaves"
            )
        return  # Written by another program, with leaves that Orbax cannot describe.
    types, requested_types = dict(_types(metadata)), dict(_types(like))
    for name in [*requested_types, *([] if partial else types)]:
        if name not in types:
            names = ", ".join([*list(types)[:8], *(["..."] if types.keys() - list(types)[:8] else [])])
            raise OtherTreeError(f"pw.checkpoint: {folder} has no leaf {name}, only {names}")
        if name not in requested_types:
            raise OtherTreeError(
                f"pw.checkpoint: {folder} has the leaf {name}, which `like` does not have; with partial=True "
                "only the leaves of `like` are restored"
            )
        saved, requested = types[name], requested_types[name]
        if saved.becomes(requested) or (partial and saved.is_convertible(requested)):
            continue
        hint = "; partial=True converts it" if saved.is_convertible(requested) else ""
        raise OtherTreeError(
            f"pw.checkpoint: {name} in {folder} is {saved}, but `like` has {requested}{hint}"
        )


def _as_in_file(request: Any, metadata: Any) -> Any:
    """Returns the tree of a file with the requested leaves, and with Orbax's mark for leaves to skip."""
    leaves = {_keys(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(request)}
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves.get(_keys(path), ...), metadata)


def _as_in_tree(like: Any, restored: Any) -> Any:
    """Returns a tree of the structure of `like`, with leaves of the restored tree of a file."""
    leaves = {_keys(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(restored)}
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[_keys(path)], like)


def _keys(path: Any) -> tuple[str, ...]:
    """Returns the keys of a path. Orbax saves tuples as lists, and named tuples as dictionaries."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


@dataclasses.dataclass(frozen=True)
class _LeafType:
    """Type of a leaf: of an array, or a Python type if it has no dtype.

    Attributes:
      kind: its dtype, or its type.
      shape: its shape; None for a Python type.
      on_hosts: whether it is restored on hosts, which read arrays alone.
    """

    kind: Any
    shape: tuple[int, ...] | None
    on_hosts: bool = False

    def __str__(self) -> str:
        if self.shape is None:
            return f"the type {self.kind.__name__}"
        return f"{self.kind}{list(self.shape)}"

    def becomes(self, requested: _LeafType) -> bool:
        """Returns whether a saved leaf can be restored as another type; numbers lose no precision."""
        if (self.kind, self.shape) == (requested.kind, requested.shape):
            return True
        if self.shape is None and self.kind not in (int, float, str):
            return True  # From another program: Orbax does not know the type.
        is_number = not self.shape and not requested.shape and None in (self.shape, requested.shape)
        if not is_number or str in (self.kind, requested.kind) or requested.on_hosts:
            return False
        # A number of Python, and another one or an array without dimensions.
        return holds(np.dtype(requested.kind), np.dtype(self.kind))

    def is_convertible(self, requested: _LeafType) -> bool:
        """Returns whether an array of floats, or complex numbers, is requested in another precision."""
        if self.shape is None or self.shape != requested.shape:
            return False
        kinds = (jax.numpy.floating, jax.numpy.complexfloating)
        return any(
            all(jax.dtypes.issubdtype(each.kind, kind) for each in (self, requested)) for kind in kinds
        )


def _types(tree: Any) -> Iterator[tuple[str, _LeafType]]:
    """Yields name and type of each leaf; keys by their data, as Orbax has them."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join(_keys(path))
        if isinstance(leaf, _AS_ARRAYS):
            leaf = np.asarray(leaf)
        elif _is_key(getattr(leaf, "dtype", None)):
            leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            on_hosts = isinstance(leaf, Array | PlacedType)
            yield name, _LeafType(np.dtype(leaf.dtype), tuple(leaf.shape), on_hosts)
        else:
            yield name, _LeafType(type(leaf), None)


def _is_key(dtype: Any) -> bool:
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
