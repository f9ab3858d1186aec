"""`jax.lax.while_loop` over chained slices with an unknown trip count: chunks of iterations."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check import assert_close, assert_equal
from jax.sharding import PartitionSpec as P
from models import layer

import pathways as pw

Fun = Callable[..., Any]

WIDTH, CHUNK = 8, 4
WEIGHTS = [np.random.default_rng(n).normal(0, 0.6, (WIDTH, WIDTH)).astype(np.float32) for n in range(2)]
X = np.random.default_rng(2).normal(size=(4, WIDTH)).astype(np.float32)
LAYERS: list[Fun] = [layer, lambda w, x: jnp.sin(x @ w) + 1]
ENDS = (0, 1, CHUNK, CHUNK + 1, 3 * CHUNK)


def decode(layers: Sequence[Fun], w: Any, x: Any, end: Any) -> Any:
    """Iterates until a number or a value ends the loop, with a cache that is filled row by row."""

    def goes_on(state: Any) -> Any:
        n, h, _ = state
        return (n < end) & (jnp.abs(h).sum() > 1e-6)

    def body(state: Any) -> Any:
        n, h, cache = state
        h = layers[0](w[0], h)
        cache = cache.at[n % 4].set(h[0])
        return n + 1, layers[1](w[1], h) + cache.sum(), cache

    n, h, cache = jax.lax.while_loop(goes_on, body, (0, jnp.sin(x), jnp.zeros((4, WIDTH))))
    return n, layers[1](w[1], h), cache, x


def check(program: Fun, layers: Sequence[Fun] = LAYERS) -> None:
    expected = jax.jit(lambda *args: decode(layers, *args))
    for end in ENDS:
        results = program(WEIGHTS, X, end)
        assert int(results[0]) == end
        assert_close(results, expected(WEIGHTS, X, end), 1e-5)


def placed_layers(layers: Sequence[Fun] = LAYERS, replicas: int = 1) -> list[Fun]:
    """Places each function on a new slice of one device."""
    devices = pw.make_virtual_device_set(replicas=replicas)
    return [pw.jit(fun, devices=devices.add_slice((1,), ("x",))) for fun in layers]


def program_on(shapes: Sequence[tuple[int, ...]], **shardings: Any) -> pw.Program:
    devices = pw.make_virtual_device_set()
    placed = [
        pw.jit(fun, devices=devices.add_slice(shape, ("x",)), **shardings)
        for fun, shape in zip(LAYERS, shapes, strict=True)
    ]
    return pw.program(lambda *args: decode(placed, *args), chunk=CHUNK)


@pytest.mark.feature("loops", "values")
def test_while_loop_ends_by_its_values():
    program = program_on([(1,), (1,)])
    check(program)
    weights, x = (jax.tree.map(jnp.asarray, value) for value in (WEIGHTS, X))
    first = program(weights, x, 2)
    assert not any(array.is_deleted() for array in (*weights, x)), "a loop keeps what it starts from"
    assert_equal(program(weights, x, 2), first)


def test_while_loop_on_slices_of_several_devices():
    check(program_on([(2,), (1,)], in_shardings=(P(None, "x"), None)))


def test_while_loop_has_forms_costs_and_a_timeline():
    lowered = program_on([(1,), (1,)]).lower(WEIGHTS, X, 3)
    assert lowered.as_text().count("module @") == 4, "the program and its three sub-programs"
    assert '"pw.until"' in lowered.as_text("sharded")
    compiled = lowered.compile()
    placed = compiled.place(WEIGHTS, X)
    assert int(compiled(*placed, 3)[0]) == 3
    assert compiled.cost_analysis()["transfers"] >= 2 * CHUNK
    assert len(compiled.timeline().slices) == 2
    with pytest.raises(TypeError, match="was compiled for"):
        compiled(WEIGHTS, X[:2], 3)


@pytest.mark.quick
@pytest.mark.process
@pytest.mark.parametrize("trust", [False, True])
def test_while_loop_in_a_bundle(tmp_path, trust):
    """All sub-programs are in the file, which accepts keys and donated arguments as the saved program."""
    placed = placed_layers()

    @functools.partial(pw.program, chunk=CHUNK, donate_argnums=1)
    def sample(w: Any, x: Any, end: Any, key: Any) -> Any:
        def body(state: Any) -> Any:
            n, x, key = state
            key, now = jax.random.split(key)
            x = placed[1](w[1], placed[0](w[0], x))
            return n + 1, x + jax.random.normal(now, x.shape), key

        return jax.lax.while_loop(lambda state: state[0] < end, body, (0, x, key))

    compiled = sample.lower(WEIGHTS, X, 0, jax.random.key(0)).compile()
    compiled.save(tmp_path / "sample.pwb", executables=True)
    loaded = pw.load(tmp_path / "sample.pwb", trust=trust)
    assert loaded.donated == {"x"}
    assert loaded.origins[trust] == 0, "executables are in the file, for those who trust it"
    for end in ENDS:
        passed = [jnp.asarray(X) for _ in range(2)]
        results = [
            fun(WEIGHTS, x, end, jax.random.key(1)) for fun, x in zip((loaded, compiled), passed, strict=True)
        ]
        assert [int(n) for n, *_ in results] == [end, end]
        assert all(x.is_deleted() for x in passed)
        for ours, theirs in zip(*([x, jax.random.key_data(key)] for _, x, key in results), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def chained(layers: Sequence[Fun], w: Any, x: Any, end: Any) -> Any:
    """Runs loops one after another: on results of the one before, on shared values, and scans."""
    body = lambda s: (s[0] + 1, layers[1](w[1], layers[0](w[0], s[1])))  # noqa: E731
    n, y = jax.lax.while_loop(lambda s: s[0] < end, body, (0, x))
    y, _ = jax.lax.scan(lambda y, _: (layers[0](w[0], y), None), y, length=2)
    m, z = jax.lax.while_loop(lambda s: s[0] < end + 2, body, (n, y))
    halved = lambda s: (s[0] + 1, layers[0](w[0], s[1]) / 2)  # noqa: E731
    k, u = jax.lax.while_loop(lambda s: jnp.abs(s[1]).sum() > 1, halved, (0, x))
    # Only some operations of it wait for the loops.
    v, sums = jax.lax.scan(lambda v, row: (layers[1](w[1], v) + layers[0](w[0], row), row.sum()), z, w[0][:2])
    return n, m, k, x, y, z, u, v, sums


@pytest.mark.parametrize("replicas", [1, 2])
def test_while_loops_follow_each_other(replicas):
    placed = placed_layers(replicas=replicas)
    program = pw.program(lambda *args: chained(placed, *args), chunk=CHUNK)
    for end in ENDS:
        expected = jax.jit(lambda *args: chained(LAYERS, *args))(WEIGHTS, X, end)
        assert_close(program(WEIGHTS, X, end), expected, 1e-5)


def test_while_loop_with_only_its_count_read():
    """The other carried values are dropped, with the conditions that only they decide."""
    placed = placed_layers()

    def count(layers: Sequence[Fun], w: Any, x: Any, end: Any) -> Any:
        def body(state: Any) -> Any:
            n, y = state
            both = lambda: layers[1](w[1], layers[0](w[0], x))  # noqa: E731
            return n + 1, jax.lax.cond(y.sum() > 0, both, lambda: y)

        return jax.lax.while_loop(lambda state: state[0] < end, body, (0, x))[0]

    assert int(pw.program(lambda *args: count(placed, *args))(WEIGHTS, X, 11)) == 11


@pytest.mark.process
def test_while_loop_with_an_unread_argument(tmp_path):
    """The argument is on no slice; the second call finds all arguments in place."""
    placed = placed_layers()

    def loop(layers: Sequence[Fun], w: Any, unread: Any, x: Any, end: Any) -> Any:
        body = lambda state: (state[0] + 1, layers[1](w[1], layers[0](w[0], state[1])))  # noqa: E731
        return jax.lax.while_loop(lambda state: state[0] < end, body, (0, x))

    program = pw.program(lambda *args: loop(placed, *args), chunk=CHUNK)
    args = *program.lower(WEIGHTS, X, X, 0).compile().place(WEIGHTS, X, X), CHUNK + 1
    compiled = program.lower(*args).compile()
    compiled.save(tmp_path / "loop.pwb")
    for run in (compiled, pw.load(tmp_path / "loop.pwb")):
        for _ in range(2):
            n, x = run(*args)
            assert int(n) == CHUNK + 1
            expected = jax.jit(lambda *args: loop(LAYERS, *args))(WEIGHTS, X, X, CHUNK + 1)[1]
            assert_close(x, expected, 1e-5)


def test_while_loop_plans_memory_of_its_sub_programs():
    """Arguments read only before or after a loop stay while it runs; donated ones until they are read."""
    first, second = placed_layers([jnp.sin, jnp.cos])
    large = np.ones((1024, WIDTH), np.float32)
    table = np.random.default_rng(0).normal(size=(64, WIDTH)).astype(np.float32)

    def loop(before: Any, after: Any, end: Any) -> Any:
        x = first(before).sum(0)
        body = lambda state: (state[0] + 1, second(first(state[1])))  # noqa: E731
        n, x = jax.lax.while_loop(lambda state: state[0] < end, body, (0, x))
        return n, first(after).sum(0) + x + first(table).sum(0)

    def memory(**options: Any) -> Any:
        compiled = pw.program(loop, chunk=CHUNK, **options).lower(large, large, 1).compile()
        kept, other = compiled.memory_analysis().values()
        assert other.peak_memory_in_bytes < 4096
        return kept

    kept, donated = memory(), memory(donate_argnums=(0, 1))
    for found in (kept, donated):
        assert 0 < found.argument_size_in_bytes - 2 * large.nbytes - table.nbytes < 64
    assert kept.alias_size_in_bytes == 0
    assert donated.alias_size_in_bytes == 2 * large.nbytes
    # The sine of each is live while it is summed up, beside its argument where the caller keeps that.
    assert 3 * large.nbytes < kept.peak_memory_in_bytes < 3.5 * large.nbytes
    assert 2 * large.nbytes < donated.peak_memory_in_bytes < 2.5 * large.nbytes


ROWS = 512


def fill(w: Any, cache: Any, x: Any, n: Any) -> Any:
    """Writes one row of a cache, and reads it."""
    cache = jax.lax.dynamic_update_slice(cache, x[None], (n, 0))
    return cache, jnp.tanh((x + cache[n] / 2) @ w)


def test_while_loop_stores_a_cache_once():
    """Iterations write to it in place, as those of a scan; those after the end pass it on."""
    placed = placed_layers([fill] * 2)

    def iteration(fills: Sequence[Fun], w: Any, state: Any) -> Any:
        n, caches, x = state
        caches = list(caches)
        for k, f in enumerate(fills):
            for call in range(2):
                caches[k], x = f(w[k], caches[k], x, n + call)
        return n + 1, caches, x

    def until(fills: Sequence[Fun], w: Any, caches: Any, x: Any, end: Any) -> Any:
        goes_on = lambda state: state[0] < end  # noqa: E731
        return jax.lax.while_loop(goes_on, lambda state: iteration(fills, w, state), (0, caches, x))

    def always(w: Any, caches: Any, x: Any, end: Any) -> Any:
        body = lambda state, _: (iteration(placed, w, state), None)  # noqa: E731
        return jax.lax.scan(body, (0, caches, x), length=CHUNK)[0]

    def caches() -> list[jax.Array]:
        return [jnp.zeros((ROWS, WIDTH)) for _ in range(2)]

    program = pw.program(lambda *args: until(placed, *args), chunk=CHUNK, donate_argnums=1)
    compiled, scan = (
        p.lower(WEIGHTS, caches(), X[0], CHUNK).compile()
        for p in (program, pw.program(always, donate_argnums=1))
    )
    for ours, theirs in zip(
        compiled.memory_analysis().values(), scan.memory_analysis().values(), strict=True
    ):
        assert ours.peak_memory_in_bytes <= 1.3 * theirs.peak_memory_in_bytes
    expected = jax.jit(lambda *args: until([fill] * 2, *args))
    for end in ENDS:
        given = compiled.place(WEIGHTS, caches(), X[0])
        places = [cache.unsafe_buffer_pointer() for cache in given[1]]
        n, written, x = compiled(*given, end)
        assert [cache.unsafe_buffer_pointer() for cache in written] == places
        assert_close((n, written, x), expected(WEIGHTS, caches(), X[0], end), 1e-5)


def test_while_loop_does_not_donate_values_that_iterations_share():
    """The last reader of an argument reuses its buffer, but the last chunk of a loop is not known."""
    placed = placed_layers()
    program = pw.program(lambda *args: decode(placed, *args)[:3], chunk=CHUNK, donate_argnums=(0, 1))
    weights, x = (jax.tree.map(jnp.asarray, value) for value in (WEIGHTS, X))
    with pytest.warns(pw.PathwaysWarning, match=r"not usable: args\[0\]\[0\]; a loop .* in every iteration"):
        program(weights, x, 2)
    assert [array.is_deleted() for array in (*weights, x)] == [False, True, True]


@pytest.fixture
def two_hosts(own_or_attached_workers: None) -> None:
    pw.connect(hosts=2)


@pytest.mark.feature("loops", "hosts")
def test_while_loop_over_two_hosts(two_hosts):
    check(program_on([(1,), (1,)]))


TABLE = np.random.default_rng(3).normal(size=(64, WIDTH)).astype(np.float32)


@pytest.mark.quick
@pytest.mark.parametrize("place", ["before", "condition", "body", "start", "after", "result"])
def test_while_loop_over_two_hosts_reads_a_closed_over_array(two_hosts, place):
    """Sub-programs get it as a hidden argument, wherever among their callers' arguments; it is no result."""

    def used(at: str, x: Any) -> Any:
        return x + TABLE[:4] * jnp.sum(TABLE) if at == place else x

    def loop(layers: Sequence[Fun], w: Any, x: Any, end: Any) -> Any:
        start = jnp.asarray(TABLE)[:4] if place == "start" else used("before", x)
        state = jax.lax.while_loop(
            lambda s: (s[0] < end) & (used("condition", s[1]).sum() < 1e9),
            lambda s: (s[0] + 1, layers[1](w[1], used("body", layers[0](w[0], s[1])))),
            (0, start),
        )
        returned = jnp.asarray(TABLE) if place == "result" else None
        return returned, w, used("after", state[1]), state

    program = pw.program(functools.partial(loop, placed_layers()), chunk=CHUNK, donate_argnums=1)
    for end in (0, CHUNK + 1):
        expected = jax.jit(functools.partial(loop, LAYERS))(WEIGHTS, X, end)
        assert_close(program(WEIGHTS, X, end), expected, 1e-5)


@pytest.mark.parametrize("hosts", [1, 4])
def test_while_loop_over_four_slices(own_workers, hosts):
    pw.connect(hosts=hosts, devices_per_host=4 // hosts)
    placed = placed_layers(LAYERS * 2)

    def twice(layers: Sequence[Fun]) -> list[Fun]:
        return [lambda w, x, k=k: layers[k + 2](w, layers[k](w, x)) for k in range(2)]

    program = pw.program(lambda *args: decode(twice(placed), *args), chunk=CHUNK)
    check(program, twice(LAYERS * 2))


def test_while_loop_ends_when_a_host_is_lost(two_hosts):
    """The loop ends with an error between chunks; the next call compiles it for the new workers."""
    program = program_on([(1,), (1,)])
    program(WEIGHTS, X, 1)
    kill = threading.Timer(0.5, os.kill, (pw.status().hosts[1].pid, signal.SIGKILL))
    kill.start()
    with pytest.raises(pw.HostLostError, match=r"^DATA_LOSS: .*host 1 \(island1\) is lost"):
        program(WEIGHTS, X, 2**30)
    kill.join()
    check(program)


def test_while_loop_without_end_has_a_deadline(own_workers):
    """The loop ends between chunks: the hosts survive, and the next call runs."""
    pw.connect(hosts=4, options=pw.HostOptions(step_deadline=1.5))
    workers = [host.pid for host in pw.status().hosts]
    program = program_on([(1,), (1,)])
    with pytest.raises(pw.ProgramFailedError, match=r"loop @loop has run for .* step_deadline is 1.5"):
        program(WEIGHTS, X, 2**30)
    check(program)
    assert [host.pid for host in pw.status().hosts] == workers


@pytest.mark.parametrize("hosts", [0, 2])
def test_while_loop_ends_at_ctrl_c(own_workers, hosts):
    """The loop ends between chunks, and the same program runs again."""
    if hosts:
        pw.connect(hosts=hosts)
    program = program_on([(1,), (1,)])
    program(WEIGHTS, X, 1)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        program(WEIGHTS, X, 2**30)
    timer.join()
    check(program)


def test_chunk_is_a_whole_number_of_iterations():
    pw.program(lambda x: x, chunk=np.int64(3))
    for chunk in (0, -1):
        with pytest.raises(ValueError, match="chunk must be a number of iterations from 1"):
            pw.program(lambda x: x, chunk=chunk)
    for chunk in (2.0, True, "2", None):
        with pytest.raises(TypeError, match=r"chunk must be a number of iterations, got"):
            pw.program(lambda x: x, chunk=chunk)


@pytest.mark.feature("loops", "error")
def test_while_loop_in_a_microbatch_is_refused():
    first, second = placed_layers([jnp.sin, jnp.cos])

    def grown(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: second(first(x)), x).sum()

    with pytest.raises(pw.ProgramError, match=r"inside the function 'grown' .* over the most iterations"):
        pw.program(lambda x: pw.accumulate(grown, 2, batch_argnums=0)(x)).lower(X)


def test_while_loop_may_hold_one_that_is_whole_on_a_slice():
    """Runs the manual's advice for a loop over slices inside of another."""

    def solve(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: jnp.abs(x).max() > 1, lambda x: x / 2, x + 1)

    def sample(layers: Sequence[Fun], x: Any) -> Any:
        body = lambda s: (s[0] + 1, layers[1](layers[0](s[1])))  # noqa: E731
        return jax.lax.while_loop(lambda s: (s[0] < 9) & (s[1].sum() < 30), body, (0, x))

    placed = placed_layers([solve, jnp.cos])
    assert_close(
        pw.program(functools.partial(sample, placed), chunk=CHUNK)(X),
        jax.jit(functools.partial(sample, [solve, jnp.cos]))(X),
    )


@pytest.mark.feature("conditionals", "error")
def test_while_loop_in_a_branch_is_refused():
    first, second = placed_layers([jnp.sin, jnp.cos])

    def step(x: Any) -> Any:
        def grown(x: Any) -> Any:
            return jax.lax.while_loop(lambda x: x < 9, lambda x: second(first(x)), x)

        return jax.lax.cond(x > 0, grown, lambda x: x, x)

    with pytest.raises(
        pw.ProgramError, match=r"inside of a branch .* place the function with the whole loop"
    ):
        pw.program(step).lower(1.0)
