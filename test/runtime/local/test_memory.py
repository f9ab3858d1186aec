"""Memory of plans: its analysis, its limits, and its table."""

import dataclasses
from types import SimpleNamespace

import pytest
from small_plans import add, double

from pathways.runtime.local import memory
from pathways.runtime.local.devices import bind
from pathways.runtime.local.load import load, stats_of
from pathways.runtime.resources.manager import ResourceError
from pathways.runtime.resources.tables import size
from pathways.runtime.resources.virtual import make_virtual_device_set


def peaks(plan, executables=None):
    found = memory.analyze(plan, stats_of(executables or {}))
    return [found[name].peak_memory_in_bytes for name in plan.slices]


def temporaries(slice, **sizes):
    """Returns executables of computations on a slice, with the bytes of their temporaries on each device."""
    return {
        (f"{name}_", slice.name): SimpleNamespace(
            get_compiled_memory_stats=lambda count=count: SimpleNamespace(
                temp_size_in_bytes=count, generated_code_size_in_bytes=1, host_temp_size_in_bytes=0
            )
        )
        for name, count in sizes.items()
    }


@pytest.fixture
def slices():
    devices = make_virtual_device_set()
    return devices.add_slice(2, "x"), devices.add_slice(1, "x")


def test_memory_counts_temporaries_during_their_launch(plan_builder, slices):
    """Arrays have 10 floats each; first x and y are live, then y and z."""
    left, _ = slices
    build = plan_builder(left)
    x = build.argument((10,), left, donated=True)
    y = build.launch(double, left, x)
    build.release(x, delete=(x,))
    z = build.launch(add, left, y, y)
    plan = build.finish(z)
    # All arrays are replicated on two devices.
    assert peaks(plan) == [2 * 80]
    assert peaks(plan, temporaries(left, double=5)) == [2 * 85]
    found = memory.analyze(plan, stats_of(temporaries(left, double=5, add=7)))
    assert found[left.name] == memory.SliceMemory(
        devices=2,
        argument_size_in_bytes=80,
        output_size_in_bytes=80,
        alias_size_in_bytes=80,
        temp_size_in_bytes=14,
        generated_code_size_in_bytes=4,
        peak_memory_in_bytes=174,
    )


def test_memory_counts_a_donated_operand_and_its_result_once(plan_builder, slices):
    _, right = slices
    build = plan_builder(right)
    x = build.argument((10,), right, donated=True)
    assert peaks(build.finish(build.launch(double, right, x, donated=(0,)))) == [40]


def test_memory_counts_split_arrays_once(plan_builder, slices):
    left, _ = slices
    build = plan_builder(left)
    y = build.launch(double, left, build.argument((10,), left))
    plan = dataclasses.replace(build.finish(y), slot_shardings=((("x",),), ()))
    assert peaks(plan) == [40 + 2 * 40]


def test_memory_has_a_table(plan_builder, slices):
    left, right = slices
    build = plan_builder(left, right)
    y = build.transfer(build.argument((256,), left), right)
    plan = build.finish(build.launch(double, right, y))
    table = str(memory.analyze(plan, stats_of(temporaries(right, double=1536)))).splitlines()
    assert [" ".join(line.split()) for line in table] == [
        "slice devices arguments results donated temporaries code peak peak of a device",
        f"{left.name} 2 2 KiB 0 B 0 B 0 B 0 B 2 KiB 1 KiB",
        f"{right.name} 1 0 B 1 KiB 0 B 1.5 KiB 1 B 3.5 KiB 3.5 KiB",
    ]


def bound(slices, plan, limit):
    return {
        slice.name: dataclasses.replace(
            binding, devices=tuple(dataclasses.replace(device, memory=limit) for device in binding.devices)
        )
        for slice, binding in bind(slices, plan.name).items()
    }


def test_memory_refuses_a_program_before_it_is_compiled(plan_builder, slices, monkeypatch):
    left, right = slices
    build = plan_builder(left, right)
    y = build.transfer(build.argument((256,), left), right)
    plan = build.finish(build.launch(double, right, y))
    assert load(plan, bound(slices, plan, 2048))
    monkeypatch.setattr("pathways.runtime.local.load.load_all", None)
    wanted = (
        rf"program program: slice {right.name} needs 2 KiB \(2,048 bytes\) on each device, without the "
        r"temporaries of its computations; a device has [\d.]+ KiB \(2,047 bytes\)\n  slice .*\n"
        rf"  {left.name} .*\n  {right.name} "
    )
    with pytest.raises(ResourceError, match=wanted):
        load(plan, bound(slices, plan, 2047))


def test_memory_check_includes_temporaries_of_xla(plan_builder, slices):
    _, right = slices
    build = plan_builder(right)
    plan = build.finish(build.launch(double, right, build.argument((256,), right)))
    bindings = bound([right], plan, 2048)
    memory.check_fits(plan, bindings, stats_of(temporaries(right, double=0)))
    with pytest.raises(ResourceError, match=r"needs .* \(2,049 bytes\) on each device; a device"):
        memory.check_fits(plan, bindings, stats_of(temporaries(right, double=1)))


def test_memory_check_adds_slices_on_one_device(plan_builder):
    devices = make_virtual_device_set()
    slices = [devices.add_slice(8, "x", overlap=True) for _ in range(2)]
    build = plan_builder(*slices)
    x, y = (build.argument((256,), slice) for slice in slices)
    plan = build.finish(*(build.launch(double, s, a) for s, a in zip(slices, (x, y), strict=True)))
    memory.check_fits(plan, bound(slices, plan, 4096), {})
    names = ", ".join(slice.name for slice in slices)
    with pytest.raises(ResourceError, match=f"slices {names}, which share devices, need 4 KiB"):
        memory.check_fits(plan, bound(slices, plan, 4095), {})


def test_memory_check_passes_if_memory_is_unknown(plan_builder, slices):
    """Devices may report none; CPU devices are checked together."""
    build = plan_builder(*slices)
    plan = build.finish(build.launch(double, slices[0], build.argument((256,), slices[0])))
    bindings = {
        name: dataclasses.replace(
            binding, devices=tuple(dataclasses.replace(device, platform="tpu") for device in binding.devices)
        )
        for name, binding in bound(slices, plan, None).items()
    }
    memory.check_fits(plan, bindings, stats_of(temporaries(slices[0], double=1 << 60)))


def test_memory_check_adds_cpu_devices_of_a_machine(plan_builder, monkeypatch):
    """An argument counts once on all of them, since they may share the caller's memory."""
    devices = make_virtual_device_set()
    left, right = (devices.add_slice(size, "x") for size in (3, 4))
    build = plan_builder(left, right)
    y = build.launch(double, left, build.argument((256,), left))
    plan = build.finish(build.launch(double, right, build.transfer(y, right)))
    bindings = bound([left, right], plan, None)
    # The argument, its double on three devices, and the copy and its double on four.
    need = 1024 * (1 + 3 + 4 + 4) + 4 * 8
    stats = stats_of(temporaries(right, double=8))
    monkeypatch.setattr(memory, "machine_memory", lambda: (need, "the machine has"))
    memory.check_fits(plan, bindings, stats)
    monkeypatch.setattr(memory, "machine_memory", lambda: (need - 1, "the machine has"))
    wanted = (
        rf"{left.name}, {right.name} need .* on all CPU devices .* together; the machine has .*\n  slice "
    )
    with pytest.raises(ResourceError, match=wanted):
        memory.check_fits(plan, bindings, stats)
    monkeypatch.setattr(memory, "machine_memory", lambda: (need - 33, "the machine has"))
    with pytest.raises(ResourceError, match="without the temporaries"):
        memory.check_fits(plan, bindings, None)


@pytest.mark.parametrize(
    ("lines", "limits", "wanted"),
    [
        ("0::/a/b", {"a/memory.max": "4096", "a/b/memory.max": "max"}, [4096]),
        ("0::/", {"memory.max": "8192"}, [8192]),
        ("0::/not/here", {"memory.max": "8192"}, [8192]),
        (
            "3:cpu,memory:/c\n1:name=systemd:/",
            {"memory/c/memory.limit_in_bytes": "1", "memory/memory.limit_in_bytes": "2"},
            [1, 2],
        ),
        ("0::/", {}, []),
    ],
)
def test_memory_limits_of_cgroups(tmp_path, lines, limits, wanted):
    (tmp_path / "proc").write_text(lines)
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert [*memory._limits_of_groups(tmp_path / "proc", tmp_path)] == wanted
    assert [*memory._limits_of_groups(tmp_path / "no proc", tmp_path)] == []


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 60, "3072 PiB")]
)
def test_size_has_units(count, text):
    assert size(count) == text
