"""Plugin of JAX for programs behind the proxy: NumPy arrays have the values of the call that reads them.

The client in JAX sends a NumPy array from its own thread after the call has returned, without a copy. A
program that fills the array again meanwhile would compute with later values. Here small arrays are copied at
the call, and large ones are sent before it returns. Calls whose arguments are all arrays of JAX stay as fast.

`pw-proxy` copies this file into a folder on the path of the program, as a module of the namespace package
`jax_plugins`, where JAX looks for plugins. It imports nothing of `pathways`, which the Python of the program
may not have, and runs with each release of JAX that may be a client.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import shutil
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib._jax
import numpy as np
from jax._src import pjit
from jaxlib import xla_client

OFF_VARIABLE = "PW_PROXY_COPY_NUMPY"
"""Variable that turns the plugin off if it is 0."""

_MAX_COPIED_BYTES = 1 << 20
_MAX_UNSENT_BYTES = 64 << 20
"""Maximum of bytes of all copies in memory, which bounds how far a program runs ahead of the client."""

_POLL_INTERVAL_S = 0.0005

_HAS_VALUES_OF_CALL = "_pathways_values_of_call"
"""Attribute of functions that are replaced already."""


def install(folder: Path) -> Path:
    """Copies this file into a folder on the path of a program; returns the file that shows it was loaded."""
    module = folder / "jax_plugins" / "pathways_proxy.py"
    module.parent.mkdir()
    shutil.copyfile(__file__, module)
    return module.with_suffix(".loaded")


def initialize() -> None:
    """Replaces functions of JAX; JAX calls it before the first use of a device."""
    # The folder of a program that outlives `pw-proxy` is removed.
    with contextlib.suppress(OSError):
        Path(__file__).with_suffix(".loaded").touch()
    if os.environ.get(OFF_VARIABLE) == "0" or "proxy" not in (jax.config.jax_platforms or ""):
        return
    try:
        copy_numpy_at_call()
    except AttributeError as error:
        warnings.warn(
            f"pw-proxy: JAX {jax.__version__} is not supported ({error}): a NumPy array may be changed only "
            "after block_until_ready() of the array that was made of it",
            stacklevel=2,
        )


def copy_numpy_at_call() -> None:
    """Patches JAX to read NumPy arrays while it is called, instead of later.

    For a program that has started its server itself. Programs that `pw-proxy` runs need no call.
    """
    if hasattr(xla_client.batched_device_put, _HAS_VALUES_OF_CALL):
        return
    put = _reading_at_call(xla_client.batched_device_put)
    fast_path = _without_numpy(pjit._get_fastpath_data)
    compiled = _compiled_without_numpy(jaxlib._jax.pjit)
    xla_client.batched_device_put = put
    pjit._get_fastpath_data = fast_path
    jaxlib._jax.pjit = compiled


class _Copies:
    """Copies of arrays that the client has not sent, which it drops afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0
        # Appended to without the lock: a destructor may run in the thread that holds it.
        self._freed: collections.deque[int] = collections.deque()

    def copy(self, arrays: Sequence[Any]) -> list[Any] | None:
        """Returns copies in place of NumPy arrays, when earlier ones are sent; None if they are too large."""
        distinct = {id(array): array for array in arrays if isinstance(array, np.ndarray)}
        size = sum(array.nbytes for array in distinct.values())
        if size > _MAX_COPIED_BYTES:
            return None
        _wait_until(lambda: self._reserve(size))
        copies = {number: self._copy(array) for number, array in distinct.items()}
        return [copies.get(id(array), array) for array in arrays]

    def _reserve(self, size: int) -> bool:
        with self._lock:
            while self._freed:
                self._bytes -= self._freed.popleft()
            if self._bytes and self._bytes + size > _MAX_UNSENT_BYTES:
                return False
            self._bytes += size
            return True

    def _copy(self, array: np.ndarray) -> np.ndarray:
        copied = np.array(array)
        weakref.finalize(copied, self._freed.append, copied.nbytes).atexit = False
        return copied


_copies = _Copies()


def _wait_until(is_done: Callable[[], bool]) -> None:
    while not is_done():
        # The client releases arrays that it has sent only here, or in a later call.
        jaxlib._jax.collect_garbage()
        if is_done():
            return
        time.sleep(_POLL_INTERVAL_S)


def _views(arrays: Sequence[Any]) -> tuple[list[Any], list[weakref.ref[np.ndarray]]]:
    """Returns views in place of NumPy arrays, and references to them, which end once they are sent."""
    # The client rejects zero and negative strides, which copies do not have.
    distinct = {
        id(array): np.array(array) if min(array.strides, default=1) <= 0 else array.view()
        for array in arrays
        if isinstance(array, np.ndarray)
    }
    return [distinct.get(id(array), array) for array in arrays], [*map(weakref.ref, distinct.values())]


def _reading_at_call(put: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `batched_device_put` that reads NumPy arrays before it returns."""

    @functools.wraps(put)
    def put_at_call(aval: Any, sharding: Any, xs: Sequence[Any], *args: Any, **options: Any) -> Any:
        # Arrays on a CPU of the program may share the memory of their NumPy arrays.
        if not next(iter(sharding.device_set)).client.runtime_type.startswith("proxy"):
            return put(aval, sharding, xs, *args, **options)
        copies = _copies.copy(xs)
        if copies is not None:
            return put(aval, sharding, copies, *args, **options)
        # The client could copy them, too, but any number of them, without a limit of its memory.
        views, unsent = _views(xs)
        result = put(aval, sharding, views, *args, **options)
        del views
        _wait_until(lambda: all(reference() is None for reference in unsent))
        return result

    setattr(put_at_call, _HAS_VALUES_OF_CALL, True)
    return put_at_call


def _has_numpy(values: Sequence[Any]) -> bool:
    # Scalars of NumPy share their entry of the cache with arrays without dimensions.
    return any(isinstance(value, np.ndarray | np.generic) for value in values)


def _without_numpy(get_fastpath_data: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function without data for the fast path, in C++, of calls with NumPy arrays.

    The fast path has data for each combination of types of arguments.
    """

    @functools.wraps(get_fastpath_data)
    def get(
        executable: Any, out_tree: Any, args_flat: Sequence[Any], *args: Any, **options: Any
    ) -> Any | None:
        if _has_numpy(args_flat):
            return None
        return get_fastpath_data(executable, out_tree, args_flat, *args, **options)

    return get


def _compiled_without_numpy(make_call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the same for calls of the results of `lower().compile()`, which have no function."""

    @functools.wraps(make_call)
    def make(name: str, function: Any, cache_miss: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if function is not None:
            return make_call(name, function, cache_miss, *args, **options)

        def miss(*call_args: Any, **call_kwargs: Any) -> tuple[Any, Any | None, bool]:
            results, fast_path, is_stale = cache_miss(*call_args, **call_kwargs)
            has_numpy = _has_numpy(jax.tree.leaves((call_args, call_kwargs)))
            return results, None if has_numpy else fast_path, is_stale

        return make_call(name, function, miss, *args, **options)

    return make
