"""Each mistake has one clear answer: a class, and a message that names function, argument, slice or line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways as pw

THIS = Path(__file__).name
Slices = tuple[pw.VirtualSlice, pw.VirtualSlice]


@pytest.fixture
def slices() -> Slices:
    devices = pw.make_virtual_device_set()
    return devices.add_slice(1, "x"), devices.add_slice(1, "x")


@pytest.fixture
def double(slices: Slices) -> Callable[[Any], Any]:
    return pw.jit(lambda x: x * 2, devices=slices[0])


@pytest.fixture
def increment(slices: Slices) -> Callable[[Any], Any]:
    return pw.jit(lambda x: x + 1, devices=slices[1])


def line_of(marker: str) -> str:
    """Returns the position of `# marker` in this file, as messages name it."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.endswith(f"# {marker}"))
    return rf"{re.escape(THIS)}:{number}\b"


# Arguments.


@pytest.mark.parametrize("bad", ["text", object(), print, {1, 2}, jnp.float32])
def test_program_refuses_argument_that_is_no_array(double, bad):
    @pw.program
    def step(params, x):
        return double(x)

    with pytest.raises(
        TypeError, match=rf"program 'step': argument params\['w'\]\[1\] is a {type(bad).__name__}"
    ):
        step({"w": [1.0, bad]}, 1.0)
    with pytest.raises(TypeError, match=r"argument params\['w'\]\[1\]"):
        step.lower({"w": [1.0, bad]}, 1.0)


def test_program_refuses_argument_that_is_no_array_in_second_call(double):
    step = pw.program(lambda x, *rest, **named: double(x))
    step(1.0, 2, y=jnp.ones(3))
    with pytest.raises(TypeError, match=r"argument args\[1\] is a str"):
        step(1.0, "text", y=jnp.ones(3))
    with pytest.raises(TypeError, match="argument y is a str"):
        step(1.0, 2, y="text")


def test_program_refuses_static_argument_without_hash(double):
    @pw.program(static_argnames="sizes")
    def step(x, sizes):
        return double(x)

    with pytest.raises(TypeError, match=r"program 'step': static argument .* must be hashable, got list"):
        step(1.0, [1, 2])
    with pytest.raises(TypeError, match="program 'step': static argument sizes must be hashable, got list"):
        step(1.0, sizes=[1, 2])


def test_jit_refuses_static_argument_without_hash(slices):
    power = pw.jit(lambda x, n: x ** n[0], devices=slices[0], static_argnums=1)
    with pytest.raises(TypeError, match=r"hashable, got list|unhashable"):
        pw.program(lambda x: power(x, [2]))(1.0)


def test_program_refuses_argument_static_and_donated(double):
    with pytest.raises(ValueError, match="program 'step': argument 0 is static and cannot be donated"):

        @pw.program(static_argnums=0, donate_argnums=0)
        def step(x):
            return double(x)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"donate_argnums": 5}, r"donate_argnums=\(5,\), but only accepts 1 positional arguments"),
        ({"static_argnums": (-2,)}, r"static_argnums=\(-2,\), but only accepts 1 positional arguments"),
        ({"donate_argnames": "y"}, r"donate_argnames=\['y'\], but its arguments are x"),
        ({"static_argnames": ["x", "y"]}, r"static_argnames=\['y'\], but its arguments are x"),
    ],
)
def test_program_refuses_options_for_unknown_arguments(double, option, message):
    with pytest.raises(ValueError, match=f"program 'lambda' has {message}"):
        pw.program(lambda x: double(x), **option)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"static_argnums": "a"}, "static_argnums='a': expected positions of arguments"),
        ({"donate_argnums": [0, 1.5]}, r"donate_argnums=\[0, 1\.5\]: expected positions of arguments"),
        ({"static_argnames": 3}, "static_argnames=3: expected names of arguments"),
        ({"donate_argnames": ["x", None]}, r"donate_argnames=\['x', None\]: expected names of arguments"),
    ],
)
def test_program_refuses_options_that_are_no_arguments(double, option, message):
    with pytest.raises(TypeError, match=f"^program 'lambda': {message}"):
        pw.program(lambda x: double(x), **option)


def test_program_refuses_wrong_number_of_arguments(double):
    @pw.program
    def step(x):
        return double(x)

    with pytest.raises(TypeError, match=r"missing .* argument: 'x'"):
        step()
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'y'"):
        step(1.0, y=2.0)


def test_program_refuses_what_is_no_function_or_slice(slices):
    with pytest.raises(TypeError, match=f"expected a function to place on {slices[0].name}, got int"):
        pw.jit(3, devices=slices[0])
    with pytest.raises(TypeError, match=r"devices must be a slice from .*add_slice\(...\), got list"):
        pw.jit(jnp.sin, devices=jax.devices())
    with pytest.raises(TypeError, match="expected a function to compile as a program, got int"):
        pw.program(3)


def test_program_refuses_argument_of_symbolic_shape(double):
    (batch,) = jax.export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((batch, 4), np.float32)
    message = r"program 'step': argument x\['w'\] has the symbolic shape \(batch, 4\)"

    @pw.program
    def step(x):
        return double(x["w"])

    with pytest.raises(ValueError, match=message):
        step.lower({"w": shape})


def test_program_refuses_reference_as_argument(double):
    ref = jax.new_ref(jnp.ones(3))
    with pytest.raises(
        TypeError, match=r"program 'lambda': argument x is a Ref, not an array.*pass the value"
    ):
        double(ref)


@pytest.mark.parametrize("where", ["between", "inside"])
def test_program_refuses_reference_from_outside(slices, where):
    ref = jax.new_ref(jnp.ones(3))

    def read(x):
        return x + ref[...]  # reads a reference

    placed = pw.jit(read if where == "inside" else jnp.sin, devices=slices[0])
    step = pw.program(placed if where == "inside" else lambda x: read(placed(x)))
    line = line_of("reads a reference")
    message = rf"a reference \(jax.new_ref\) from outside of the program is used at .*{line}"
    with pytest.raises(ValueError, match=message):
        step(jnp.ones(3))


# While tracing.


@pytest.mark.feature("programs", "error")
def test_program_wrong_shapes_inside_are_error_of_jax(double):
    with pytest.raises(TypeError, match="incompatible shapes"):
        pw.program(lambda x: double(x) + jnp.ones(4))(jnp.ones(3))
    # An error while tracing leaves no trace state behind.
    assert double(1.0) == 2
    assert pw.program(double)(1.0) == 2


def test_program_raises_exception_of_user(slices):
    @pw.jit(devices=slices[0])
    def broken(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pw.program(broken)(1.0)
    with pytest.raises(KeyError, match="mine"):
        broken(1.0)


def test_program_refuses_to_read_value_while_tracing(double):
    with pytest.raises(jax.errors.TracerBoolConversionError):
        pw.program(lambda x: double(x) if x > 0 else x)(1.0)


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap, jax.checkpoint, jax.linearize])
def test_program_refuses_transformation_around_it(double, transform):
    @pw.program
    def step(x):
        return jnp.sum(double(x))

    arguments = (step, jnp.ones(3)) if transform is jax.linearize else (jnp.ones(3),)

    def transformed():
        return jax.linearize(*arguments) if transform is jax.linearize else transform(step)(*arguments)

    message = "program 'step': argument x is a JAX tracer.*put the transformation inside"
    with pytest.raises(TypeError, match=message):
        transformed()
    # Also when it has run before.
    step(jnp.ones(3))
    with pytest.raises(TypeError, match=message):
        transformed()


def test_jit_refuses_transformation_outside_program(slices, double):
    for transform in (jax.jit, jax.grad):
        with pytest.raises(TypeError, match=f"placed on {slices[0].name}, .* under @pw.program"):
            transform(double)(1.0)


def test_program_refuses_leaked_tracer(double):
    leaked = []

    @pw.program
    def leaky(x):
        leaked.append(double(x))
        return leaked[0]

    leaky(1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError, match="value leaked was leaky"):
        pw.program(_named("step", lambda y: double(y)))(leaked[0])
    with pytest.raises(jax.errors.UnexpectedTracerError, match="program 'closing' closes over a JAX tracer"):
        pw.program(_named("closing", lambda y: double(y) + leaked[0]))(1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError, match="transformation around the program"):
        jax.jit(lambda x: pw.program(lambda: double(x))())(1.0)


def _named(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    fun.__name__ = name
    return fun


def test_program_refuses_to_return_nothing(double):
    @pw.program
    def step(x):
        double(x)

    with pytest.raises(pw.ProgramError, match="program 'step' returns nothing"):
        step(1.0)


def test_program_refuses_function_without_placed_calls():
    @pw.program
    def step(x):
        return x + 1

    with pytest.raises(pw.ProgramError, match=r"program 'step': .* calls no placed function"):
        step(1.0)


# Slices and devices.


def test_add_slice_refuses_zero_devices():
    with pytest.raises(ValueError, match=r"slice shape \(2, 0\): a slice of zero devices"):
        pw.make_virtual_device_set().add_slice((2, 0), ("x", "y"))


def test_program_refuses_more_devices_than_there_are():
    devices = pw.make_virtual_device_set()
    small, large = devices.add_slice(1, "x"), devices.add_slice(8, "x")
    first, second = pw.jit(jnp.sin, devices=small), pw.jit(jnp.cos, devices=large)

    @pw.program
    def step(x):
        return second(first(x))

    first(1.0)
    with pytest.raises(
        pw.ResourceError, match=rf"program step: .*needs 9.*{large.name}: 8.*there are 8"
    ) as raised:
        step(1.0)
    # There would be too few even without other slices.
    assert "release" not in str(raised.value)
    # The program that has the devices keeps them.
    assert second(0.0) == 1
    assert first(0.0) == 0


# Control flow over slices.


def test_program_refuses_loop_over_slices_without_trip_count(double, increment):
    @pw.program
    def step(x):
        def body(x):
            x = double(x)
            return increment(x)  # second slice of a loop

        return jax.lax.fori_loop(0, 2, lambda _, x: jax.lax.while_loop(lambda x: x < 9, body, x), x)

    message = f"trip count is not known.*inside of another one: place.*{line_of('second slice of a loop')}"
    with pytest.raises(pw.ProgramError, match=message):
        step(1.0)


def test_program_scan_over_one_slice(double, increment):
    @pw.program
    def step(x):
        h, seen = jax.lax.scan(lambda h, _: (double(h), h), x, None, length=3)
        return increment(h), seen

    h, seen = step(1.0)
    assert h == 9
    np.testing.assert_array_equal(seen, [1, 2, 4])


def test_jit_refuses_call_inside_function_of_other_slice(slices, increment):
    @pw.jit(devices=slices[0])
    def outer(x):
        return increment(x) * 2  # nested call

    s0, s1 = (slice.name for slice in slices)
    message = f"function 'lambda' is placed on @{s1}.*inside 'outer'.*@{s0}.*{line_of('nested call')}"
    with pytest.raises(pw.ProgramError, match=message):
        pw.program(lambda x: outer(x))(1.0)
    with pytest.raises(pw.ProgramError, match=message):
        outer(1.0)


def test_jit_called_inside_function_of_same_slice(slices, double):
    outer = pw.jit(lambda x: double(double(x)) + 1, devices=slices[0])
    assert pw.program(lambda x: outer(x))(1.0) == 5
    assert outer(2.0) == 9


# Callbacks.


@pytest.mark.parametrize("inside", [True, False])
def test_program_refuses_ordered_prints(slices, double, inside):
    def print_ordered(x):
        jax.debug.print("x = {}", x, ordered=True)
        return x * 2

    speak = pw.jit(print_ordered, devices=slices[0]) if inside else lambda x: print_ordered(double(x))

    @pw.program
    def step(x):
        return speak(x)

    with pytest.raises(pw.ProgramError, match=r"program 'step'.*ordered=True"):
        step(1.0)


def test_program_prints_inside_and_between_placed_functions(slices, double, capfd):
    @pw.jit(devices=slices[1])
    def inside(x):
        jax.debug.print("inside {}", x)
        return x + 1

    @pw.program
    def step(x):
        y = double(x)
        jax.debug.print("between {}", y)
        return inside(y)

    for n in range(3):
        assert step(float(n)) == 2 * n + 1
    jax.effects_barrier()
    lines = capfd.readouterr().out.split("\n")
    assert sorted(lines) == sorted(["", *(f"{w} {2.0 * n}" for w in ("inside", "between") for n in range(3))])


def test_program_prints_on_slice_of_several_devices(capfd):
    s0 = pw.make_virtual_device_set().add_slice(4, "x")

    @pw.jit(devices=s0)
    def inside(x):
        jax.debug.print("inside {}", x)
        return x + 1

    assert inside(1.0) == 2
    jax.effects_barrier()
    lines = capfd.readouterr().out.split("\n")
    # As under jax.jit, each device may print replicated values.
    assert set(lines) == {"inside 1.0", ""}


def test_program_runs_for_its_print(double, capfd):
    @pw.program
    def step(x):
        jax.debug.print("got {}", double(x))

    step(1.0)
    jax.effects_barrier()
    assert capfd.readouterr().out == "got 2.0\n"


def test_program_pure_callbacks(slices, double):
    def call_numpy(x):
        return jax.pure_callback(np.sqrt, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    root = pw.jit(call_numpy, devices=slices[1])
    f = pw.program(lambda x: root(call_numpy(double(x))))
    np.testing.assert_array_equal(f(np.full(3, 128, np.float32)), [4, 4, 4])


def test_program_exception_in_callback_surfaces(slices, double):
    def fail(x):
        raise ValueError("mine")

    @pw.jit(devices=slices[1])
    def broken(x):
        return jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.float32), x)

    step = pw.program(lambda x: (double(x), double(broken(x))))
    with pytest.raises(jax.errors.JaxRuntimeError, match="mine"):
        jax.block_until_ready(step(np.float32(1)))
    assert double(np.float32(1)) == 2
    # As under jax.jit, a failing callback that is pure is not reported again.
    jax.effects_barrier()


def test_program_callback_runs_for_unread_result(slices, double):
    seen: list[float] = []

    @pw.jit(devices=slices[1])
    def report(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x)
        return x

    @pw.program
    def step(x):
        report(x)
        report(x)
        return double(x)

    assert step(1.0) == 2
    jax.effects_barrier()
    assert seen == [1, 1]


# Compiling.


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
def test_program_names_computation_that_xla_refuses(slices, double):
    @pw.jit(devices=slices[1])
    def strange(x):
        return jax.ffi.ffi_call("not_there", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    @pw.program
    def step(x):
        return strange(double(x))

    for _ in range(2):
        with pytest.raises(pw.CompileError, match=f"strange on slice {slices[1].name}: .*not_there"):
            step(np.float32(1))


# Interrupts and the environment, each in a process of its own.


PRELUDE = """
import jax, jax.numpy as jnp, numpy as np, time
import pathways as pw
pw.connect(cpu_devices=2)
devices = pw.make_virtual_device_set()
s0, s1 = devices.add_slice(1, "x"), devices.add_slice(1, "x")
"""


def script(body: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(body)]


STILL_COMPILING = "pathways: waiting for XLA to finish compiling; Ctrl-C ends the process at once\n"
COMPILE = """
def slow(x):  # XLA takes seconds
    for n in range(150):
        x = jnp.sin(x) @ x + n
    return x

lowered = pw.program(lambda x: pw.jit(slow, devices=s1)(pw.jit(slow, devices=s0)(x))).lower(np.ones((8, 8)))
print("ready", flush=True)
lowered.compile()
"""
RUN = """
def long(x):
    return jax.lax.fori_loop(0, 1000, lambda _, x: x @ x * 1e-3, x)

first, second = pw.jit(long, devices=s0), pw.jit(lambda x: x, devices=s1)
step = pw.program(lambda x: second(first(x)))
result = step(jnp.ones((300, 300)))
result.block_until_ready()
print("ready", flush=True)
while True:
    result = step(result)
    result.block_until_ready()
"""
STEPS = """
first, second = pw.jit(jnp.sin, devices=s0), pw.jit(jnp.cos, devices=s1)
step = pw.program(lambda x: second(first(x)))
x = step(jnp.ones((3, 3)))
print("ready", flush=True)
while True:
    x = step(x)
"""


@pytest.mark.process
@pytest.mark.parametrize("body", [COMPILE, RUN, STEPS], ids=["compile", "run", "steps"])
def test_ctrl_c_is_keyboard_interrupt(body):
    with subprocess.Popen(script(body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.2)
            assert child.poll() is None
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode in (-signal.SIGINT, 130), errors
    # While XLA compiles, a line after the traceback names what the process waits for.
    assert errors.removesuffix(STILL_COMPILING).endswith("\nKeyboardInterrupt\n")


@pytest.mark.process
def test_process_exits_while_work_is_in_flight():
    body, _, _ = RUN.partition("print(")
    done = subprocess.run(
        script(body + "for _ in range(2): result = step(result)"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def run_with(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


DOUBLE = """
import pathways as pw
double = pw.jit(lambda x: x * 2, devices=pw.make_virtual_device_set().add_slice(3, "x"))
print(double(1.0))
"""


@pytest.mark.process
def test_cpu_devices_from_environment():
    done = run_with(DOUBLE, JAX_NUM_CPU_DEVICES="3")
    assert done.stdout == "2.0\n", done.stderr


USES_JAX_FIRST = """
import jax
jax.numpy.ones(2)
"""


@pytest.mark.process
def test_cpu_devices_if_jax_is_used_first():
    done = run_with(USES_JAX_FIRST + DOUBLE, JAX_NUM_CPU_DEVICES="3")
    assert done.stdout == "2.0\n", done.stderr


@pytest.mark.process
@pytest.mark.parametrize("platform", ["cuda", "nothere"])
def test_platform_that_is_not_available(platform):
    done = run_with("import pathways as pw\npw.cluster()", JAX_PLATFORMS=platform)
    (message,) = (line for line in done.stderr.splitlines() if "Error" in line)
    assert re.search(rf"ResourceError: JAX_PLATFORMS={platform}: JAX has no devices here", message), (
        done.stderr
    )
    assert "jax/_src" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("many", 'ValueError: Invalid value "many" for JAX flag jax_num_cpu_devices'),
        (
            "2",
            "not enough devices: it needs 3.*there are 2.*\n.*set JAX_NUM_CPU_DEVICES=3 in the environment",
        ),
    ],
    ids=["text", "too few"],
)
def test_cpu_devices_refuses_bad_number(value, message):
    done = run_with(DOUBLE, JAX_NUM_CPU_DEVICES=value)
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr
