"""Handlers with which Orbax writes and reads leaves on hosts.

Orbax is an extra, and slow to import: `checkpoint` imports this module when it is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as orbax
from orbax.checkpoint import type_handlers

# There is no other way to it, and `PyTreeHandler` accepts one.
from orbax.checkpoint.experimental.v1._src.serialization.registry import StandardLeafHandlerRegistry

from pathways.compiler.data.host_checkpoints import SavedLeaf
from pathways.runtime.data.host_files import (
    CheckpointFailedError,
    HostSave,
    RestoredLeaf,
    arrays_read_by_hosts,
)


class HostLeafHandler:
    """Orbax's `LeafHandler` for leaves on hosts."""

    def __init__(self, *, context: Any = None) -> None:
        self._context = context

    async def serialize(self, params: Sequence[Any], place: Any) -> Awaitable[None]:
        """Returns an awaitable that makes hosts write leaves."""

        async def write() -> None:
            folder = await place.parent_dir.await_creation()
            saving = self._context.array_options.saving

            def spec(name: str, shape: Any, dtype: Any, shard: Any, process: str) -> Any:
                info = type_handlers.ParamInfo(
                    name=name,
                    parent_dir=folder,
                    use_zarr3=saving.use_zarr3,
                    use_compression=saving.use_compression,
                    is_ocdbt_checkpoint=saving.use_ocdbt,
                    ts_context=place.ts_context,
                )
                return type_handlers.get_json_tspec_write(
                    info,
                    use_ocdbt=saving.use_ocdbt,
                    global_shape=shape,
                    local_shape=shard,
                    dtype=np.dtype(dtype),
                    process_index=process,
                )

            names = {param.value.number: param.name for param in params}
            settings = place.ts_context.spec.to_json()
            save: HostSave = params[0].value.save
            await asyncio.to_thread(save.write, names, Path(folder), spec, settings)

        return write()

    async def deserialize(self, params: Sequence[Any], place: Any) -> Awaitable[Sequence[Any]]:
        """Returns an awaitable that makes hosts read leaves: of the arrays, or of the error for each."""

        def spec(name: str) -> Any:
            info = type_handlers.ParamInfo(
                name=name,
                parent_dir=place.parent_dir,
                use_zarr3=place.zarr3_checkpoint,
                is_ocdbt_checkpoint=place.ocdbt_checkpoint,
                ts_context=place.ts_context,
            )
            return type_handlers.get_json_tspec_read(info, use_ocdbt=place.ocdbt_checkpoint)

        targets = [param.value for param in params]
        names = [param.name for param in params]
        settings = place.ts_context.spec.to_json()
        folder = Path(place.parent_dir)

        async def read() -> Sequence[Any]:
            try:
                return await asyncio.to_thread(arrays_read_by_hosts, targets, names, folder, spec, settings)
            except CheckpointFailedError as error:
                # Raised when Orbax is done: its other reads would stay unfinished.
                return [error] * len(targets)

        return asyncio.create_task(read())

    async def metadata(self, params: Sequence[Any], place: Any) -> Sequence[Any]:
        """Raises an error: Orbax reads the metadata of these leaves with its handler of NumPy arrays."""
        raise NotImplementedError("files have leaves on hosts as NumPy arrays")


class JaxLeafHandler(HostLeafHandler):
    """The same for arrays that were saved from devices of one process."""


_leaf_handlers = StandardLeafHandlerRegistry()
# Files have NumPy arrays; the reader decides on the devices.
_leaf_handlers.add(SavedLeaf, RestoredLeaf, HostLeafHandler, secondary_typestrs=["np.ndarray"])
# A handler has one name in files, and pairs of types; this one is found by its name alone.
_leaf_handlers.add(JaxLeafHandler, JaxLeafHandler, JaxLeafHandler, secondary_typestrs=["jax.Array"])


class HostTreeHandler(orbax.handlers.PyTreeHandler):
    """Orbax's handler of trees, for trees with leaves on hosts."""

    def __init__(self, **options: Any) -> None:
        super().__init__(leaf_handler_registry=_leaf_handlers, **options)


# Its name is in the files, and files of other programs have only the one of Orbax.
HostTreeHandler.__module__, HostTreeHandler.__qualname__ = (
    orbax.handlers.PyTreeHandler.__module__,
    orbax.handlers.PyTreeHandler.__qualname__,
)


def context_of_hosts(*, compress: bool | None) -> Any:
    """Returns a context of Orbax with the handler of leaves on hosts.

    Args:
      compress: whether arrays are compressed; None for Orbax's default.
    """
    defaults = orbax.handlers.global_registry()
    registry = orbax.handlers.local_registry(include_global_registry=False)
    for handler, name in defaults.get_all_entries():
        registry.add(
            HostTreeHandler if handler is orbax.handlers.PyTreeHandler else handler,
            checkpointable_name=name,
            secondary_typestrs=defaults.get_secondary_typestrs(handler),
        )
    context = orbax.Context()
    context.checkpointables.registry = registry
    if compress is not None:
        context.array.saving.use_compression = compress
    return context


def restored_by_hosts(folder: Any, request: Any) -> Any:
    """Loads a tree with some leaves that hosts read.

    Args:
      folder: the checkpoint.
      request: the request to Orbax, with `RestoredLeaf`s.

    Raises:
      CheckpointFailedError: a host cannot read its shards; names host and folder.
    """
    items = [file.name for file in folder.iterdir() if (file / "_METADATA").exists()]
    if len(items) == 1:
        # By its name: a request without one must be of the types that Orbax knows.
        with context_of_hosts(compress=None):
            tree = orbax.load_checkpointables(folder, {items[0]: request})[items[0]]
        for leaf in jax.tree.leaves(tree):
            if isinstance(leaf, CheckpointFailedError):
                raise leaf.with_traceback(None)
        return tree
    # A checkpoint of another layout, which this process reads.
    leaves, structure = jax.tree.flatten(request)
    here = [
        np.broadcast_to(np.zeros((), leaf.aval.dtype), leaf.aval.shape)
        if isinstance(leaf, RestoredLeaf)
        else leaf
        for leaf in leaves
    ]
    loaded = jax.tree.leaves(orbax.load(folder, jax.tree.unflatten(structure, here)))
    placed = [
        leaf.put(np.asarray(value)) if isinstance(leaf, RestoredLeaf) else value
        for leaf, value in zip(leaves, loaded, strict=True)
    ]
    return jax.tree.unflatten(structure, placed)


class _LogFilter(logging.Filter):
    """Filter of Orbax's log records that are of no use to a user of `pw.checkpoint`.

    Orbax logs errors that it also raises, in each of its threads and with all of its frames, and the removal
    of the remains of an interrupted save, which `save` promises.

    Args:
      is_saving: returns whether `pw.checkpoint` saves. Errors of the program's own saves by Orbax are logged.
    """

    def __init__(self, is_saving: Callable[[], bool]) -> None:
        super().__init__()
        self._is_saving = is_saving

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("Attempted to create temporary directory"):
            return False
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and self._is_saving() and "_SignalingThread" in str(record.msg):
            return False
        while error is not None:
            if isinstance(error, CheckpointFailedError):
                return False
            error = error.__cause__ or error.__context__
        return True


def filter_log(is_saving: Callable[[], bool]) -> None:
    """Adds the filter to Orbax's logger.

    Args:
      is_saving: see `_LogFilter`.
    """
    log = logging.getLogger("absl")
    if not any(isinstance(filter_, _LogFilter) for filter_ in log.filters):
        log.addFilter(_LogFilter(is_saving))
