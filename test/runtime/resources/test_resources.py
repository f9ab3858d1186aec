"""Resource manager: slices get devices, share them between programs, and release them."""

import threading

import pytest

from pathways.runtime.resources.cluster import (
    HOSTS_REMEDY,
    SERVICE_REMEDY,
    Cluster,
    Device,
    DeviceIsland,
    Host,
)
from pathways.runtime.resources.manager import ResourceError, ResourceManager
from pathways.runtime.resources.process_cluster import ProcessCluster
from pathways.runtime.resources.virtual import make_virtual_device_set


def cluster_of(count: int, islands: int = 1) -> Cluster:
    """Returns a cluster of devices without hosts, in equal islands."""
    size = count // islands
    devices = [
        Device(n, 100 + n, "cpu", Host(0), f"island{n // size}", memory=1000 + n) for n in range(count)
    ]
    return Cluster(
        tuple(
            DeviceIsland(f"island{number}", tuple(devices[number * size : (number + 1) * size]))
            for number in range(islands)
        )
    )


def manager_of(devices: int = 8, islands: int = 1) -> ResourceManager:
    return ResourceManager(cluster_of(devices, islands))


def test_manager_gives_slices_of_one_program_other_devices():
    devices = make_virtual_device_set()
    s0, s1 = devices.add_slice((2, 2), ("x", "y")), devices.add_slice(2, "x")
    bound = manager_of().bind([s0, s1], "f")
    assert bound[s0].positions == (0, 1, 2, 3)
    assert bound[s1].positions == (4, 5)
    assert [device.id for device in bound[s0].devices] == [100, 101, 102, 103]
    assert (bound[s0].shape, bound[s0].axis_names) == ((2, 2), ("x", "y"))
    assert (bound[s1].island, bound[s1].device_memory) == ("island0", 1004)


def test_manager_keeps_devices_of_a_slice_for_the_next_program():
    manager, devices = manager_of(), make_virtual_device_set()
    s0, s1 = devices.add_slice(2, "x"), devices.add_slice(2, "x")
    first = manager.bind([s0], "f")[s0]
    bound = manager.bind([s1, s0], "g")
    assert bound[s0] is first
    assert not set(bound[s1].positions) & set(first.positions)


def test_manager_prefers_the_least_loaded_devices():
    manager = manager_of(4)
    slices = [make_virtual_device_set().add_slice(size, "x") for size in (3, 2, 4)]
    positions = [manager.bind([slice], f"f{slice.size}")[slice].positions for slice in slices]
    assert positions == [(0, 1, 2), (0, 3), (0, 1, 2, 3)]


def test_manager_spreads_slices_of_one_device_set():
    manager, devices = manager_of(4), make_virtual_device_set()
    s0 = devices.add_slice(2, "x")
    foreign = [make_virtual_device_set().add_slice(2, "x") for _ in range(2)]
    manager.bind([s0], "f")
    for other in foreign:
        manager.bind([other], "g")
    s1 = devices.add_slice(2, "x")
    assert manager.bind([s1], "f")[s1].positions == (2, 3)


def test_manager_reuses_devices_of_released_and_dropped_slices():
    manager = manager_of(4)
    s0 = make_virtual_device_set().add_slice(2, "x")
    s1 = make_virtual_device_set().add_slice(2, "x")
    manager.bind([s0, s1], "f")
    manager.release(s0)
    assert list(manager.holders()) == [s1]
    del s1
    assert not manager.holders()


def test_manager_keeps_a_slice_within_one_island():
    manager, devices = manager_of(8, islands=2), make_virtual_device_set()
    slices = [devices.add_slice(size, "x") for size in (1, 3, 3, 1)]
    bound = manager.bind(slices, "f")
    assert sorted(p for binding in bound.values() for p in binding.positions) == list(range(8))
    for binding in bound.values():
        assert len({position // 4 for position in binding.positions}) == 1


def test_manager_packs_beyond_the_first_fit():
    """Best first would put 2 and 3 together and leave no room for the last 2."""
    manager, devices = manager_of(8, islands=2), make_virtual_device_set()
    fixed = devices.add_slice(1, "x", island="island1")
    slices = [devices.add_slice(size, "x") for size in (2, 3, 2)]
    bound = manager.bind([*slices, fixed], "f")
    assert bound[fixed].island == "island1"
    assert sorted(p for binding in bound.values() for p in binding.positions) == list(range(8))


def test_manager_names_devices_and_the_remedy_in_errors():
    manager, devices = manager_of(4), make_virtual_device_set()
    s0, s1 = devices.add_slice(2, "x", name="left"), devices.add_slice(3, "x", name="right")
    manager.bind([s0], "f")
    with pytest.raises(ResourceError) as caught:
        manager.bind([s0, s1], "g")
    assert str(caught.value).splitlines() == [
        "program g: not enough devices: it needs 5, no two of its slices on one device "
        "(left: 2, right: 3); there are 4 (island0: 4)",
        "  for more CPU devices set JAX_NUM_CPU_DEVICES=5 in the environment, or call "
        "pathways.connect(cpu_devices=5) before anything else uses JAX",
    ]
    assert list(manager.holders()) == [s0]


@pytest.mark.parametrize("remedy", [HOSTS_REMEDY, SERVICE_REMEDY])
def test_manager_names_the_remedy_of_hosts(remedy):
    manager = ResourceManager(cluster_of(1), remedy)
    with pytest.raises(ResourceError) as caught:
        manager.bind([make_virtual_device_set().add_slice(2, "x")], "f")
    assert str(caught.value).splitlines()[1:] == [f"  {remedy}"]


def test_process_cluster_names_the_remedy_after_disconnect():
    """JAX_NUM_CPU_DEVICES cannot replace the devices of a cluster that the process has disconnected from."""
    cluster, slices = ProcessCluster(lambda: cluster_of(1)), [make_virtual_device_set().add_slice(2, "x")]
    cluster.disconnect()
    with pytest.raises(ResourceError, match="set JAX_NUM_CPU_DEVICES=2"):
        cluster.bind(slices, "f")
    cluster.connect(lambda: cluster_of(4))
    cluster.bind(slices, "f")
    for _ in range(2):
        cluster.disconnect()
        with pytest.raises(
            ResourceError, match=r"since .*disconnect\(\) .* call .*connect\(\.\.\.\)"
        ) as caught:
            cluster.bind(slices, "f")
        assert "JAX_NUM_CPU_DEVICES" not in str(caught.value)
    cluster.connect(lambda: cluster_of(1, 1))
    with pytest.raises(ResourceError, match="set JAX_NUM_CPU_DEVICES=2"):
        cluster.bind(slices, "f")


@pytest.mark.parametrize(
    ("devices", "islands", "text"),
    [
        (1, 1, "1 cpu device (island0: 1 on host 0)"),
        (8, 2, "8 cpu devices (island0: 4 on host 0, island1: 4 on host 0)"),
    ],
)
def test_cluster_repr_is_a_line(devices, islands, text):
    assert repr(cluster_of(devices, islands)) == f"<pathways.Cluster of {text}>"


def test_cluster_repr_leaves_out_many_islands():
    hosts = [[Device(0, 0, "tpu", Host(2 * n + k), f"island{n}") for k in range(2)] for n in range(100)]
    cluster = Cluster(tuple(DeviceIsland(f"island{n}", tuple(of)) for n, of in enumerate(hosts)))
    begin, end = (
        "<pathways.Cluster of 200 tpu devices (island0: 2 on hosts 0 to 1, ",
        ", and 92 more islands)>",
    )
    assert (repr(cluster)[: len(begin)], repr(cluster)[-len(end) :]) == (begin, end)
    assert "92" not in repr(cluster)[: -len(end)]


def test_manager_names_blocking_slices_in_errors():
    """Slices of the program that got devices in other programs leave no island whole; others do not block."""
    manager, devices = manager_of(4, islands=2), make_virtual_device_set()
    front, whole, other = (
        devices.add_slice(size, "x", name=name) for name, size in (("front", 1), ("whole", 2), ("other", 2))
    )
    back = devices.add_slice(1, "x", name="back", island="island1")
    manager.bind([front], "f")
    manager.bind([back], "g")
    manager.bind([other], "g")
    with pytest.raises(ResourceError) as caught:
        manager.bind([front, back, whole], "h")
    _, *blocking, _ = str(caught.value).splitlines()
    assert blocking == [
        f"  {front.name} has devices 0 since program f; pathways.release(slice) releases them",
        f"  {back.name} has devices 2 since program g; pathways.release(slice) releases them",
    ]


def test_manager_refuses_an_unknown_island():
    slice = make_virtual_device_set().add_slice(1, "x", name="lost", island="atlantis")
    with pytest.raises(ResourceError, match=r"lost: 1 on atlantis"):
        manager_of().bind([slice], "f")


@pytest.mark.parametrize("is_one_set", [True, False])
def test_manager_refuses_slices_bound_to_the_same_devices(is_one_set):
    """For slices of different device sets, the error says that one set would have separated them."""
    manager, devices = manager_of(3), make_virtual_device_set()
    s0 = devices.add_slice(2, "x", name="east")
    s1 = (devices if is_one_set else make_virtual_device_set()).add_slice(1, "x", name="west")
    rest = devices.add_slice(1, "x")
    for slice, program in ((s0, "f"), (rest, "other"), (s1, "g")):
        manager.bind([slice], program)
    with pytest.raises(ResourceError) as caught:
        manager.bind([s0, s1], "h")
    assert str(caught.value) == (
        f"program h: its slices {s0.name} and {s1.name} share devices 0, to which programs f and g bound "
        "one each; release one of them with pathways.release, and this program binds it to others"
        + ("" if is_one_set else ", or create both from one device set before either is used")
    )
    manager.release(s1)
    bound = manager.bind([s0, s1], "h")
    assert not set(bound[s0].positions) & set(bound[s1].positions)


def test_manager_counts_devices_of_slices_bound_to_the_same_devices():
    """Releasing one of them would not help."""
    manager, devices = manager_of(2), make_virtual_device_set()
    slices = [devices.add_slice(2, "x", name=name) for name in ("east", "west")]
    for slice, program in zip(slices, "fg", strict=True):
        manager.bind([slice], program)
    with pytest.raises(
        ResourceError, match=r"not enough devices: it needs 4.*\n.*set JAX_NUM_CPU_DEVICES=4 in"
    ):
        manager.bind(slices, "h")


def test_manager_binds_a_slice_once_for_all_threads():
    manager, devices = manager_of(), make_virtual_device_set()
    slices = [devices.add_slice(1, "x") for _ in range(8)]
    seen = []

    def bind() -> None:
        seen.append([manager.bind([slice], "f")[slice].positions for slice in slices])

    threads = [threading.Thread(target=bind) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(positions == seen[0] for positions in seen)
    assert sorted(seen[0]) == [(number,) for number in range(8)]


def test_manager_shares_devices_only_on_request():
    devices = make_virtual_device_set()
    count = 8
    first = devices.add_slice(count, "x", overlap=True)
    second = devices.add_slice(count, "x", overlap=True)
    bound = manager_of().bind([first, second], "step")
    assert bound[first].positions == bound[second].positions

    alone = devices.add_slice(1, "x")
    with pytest.raises(ResourceError, match="not enough devices"):
        manager_of().bind([first, alone], "step")


def test_manager_puts_sharing_slices_together():
    devices = make_virtual_device_set()
    count = 8
    alone = devices.add_slice(count - 1, "x")
    sharing = [devices.add_slice(1, "x", overlap=True) for _ in range(3)]
    bound = manager_of().bind([*sharing, alone], "step")
    assert {bound[s].positions for s in sharing} == {(count - 1,)}
    assert set(bound[alone].positions) == set(range(count - 1))


@pytest.mark.feature("overlap", "error")
@pytest.mark.parametrize("by_replica", [True, False])
def test_manager_shares_no_device_between_replicas(by_replica):
    """Callers see the slices of all replicas as one mesh."""
    devices = make_virtual_device_set(replicas=2)
    slices = [devices.add_slice(2, "x", overlap=True) for _ in range(2)]
    every = [slice.replicas for slice in slices]
    ordered = sum(zip(*every, strict=True) if by_replica else every, ())
    bound = manager_of(4).bind(ordered, "step")
    for first, second in zip(*(slice.replicas for slice in slices), strict=True):
        assert bound[first].positions == bound[second].positions
    assert {bound[slice].positions for slice in every[0]} == {(0, 1), (2, 3)}
    with pytest.raises(ResourceError, match="may share some, but none with those of another replica"):
        manager_of(3).bind(ordered, "step")


def test_manager_knows_replicas_under_slices_of_other_sets():
    replicated = make_virtual_device_set(replicas=2)
    slices = [replicated.add_slice(1, "x", overlap=True) for _ in range(2)]
    between = [make_virtual_device_set().add_slice(1, "x", overlap=True) for _ in range(3)]
    bound = manager_of(2).bind([*slices[0].replicas, *between, *slices[1].replicas], "step")
    for first, second in zip(*(slice.replicas for slice in slices), strict=True):
        assert bound[first].positions == bound[second].positions


def test_process_cluster_is_discovered_at_first_use():
    clusters = []

    def discover() -> Cluster:
        clusters.append(cluster_of(2))
        return clusters[-1]

    cluster = ProcessCluster(discover)
    assert cluster.bound_slices() == []
    assert not clusters
    slice = make_virtual_device_set().add_slice(1, "x", name="first")
    assert cluster.bind([slice], "f")[slice].positions == (0,)
    assert cluster.bound_slices() == [slice.name]
    assert cluster.cluster() is cluster.manager().cluster is clusters[0]
    assert len(clusters) == 1


def test_process_cluster_changes_only_while_no_slice_is_bound():
    cluster = ProcessCluster(lambda: cluster_of(2))
    slice = make_virtual_device_set().add_slice(3, "x")
    with pytest.raises(ResourceError, match="there are 2"):
        cluster.bind([slice], "f")
    larger = cluster_of(4)
    assert cluster.connect(lambda: larger) is cluster.cluster() is larger
    cluster.bind([slice], "f")
    with pytest.raises(RuntimeError, match=f"connect: slices {slice.name} are bound to devices"):
        cluster.connect(lambda: cluster_of(1))
    assert cluster.cluster() is larger
    cluster.release(slice)
    assert len(cluster.connect(lambda: cluster_of(1)).devices) == 1


def test_manager_keeps_a_replica_on_one_island():
    devices = make_virtual_device_set(replicas=2)
    slices = [*devices.add_slice(2, "x").replicas, *devices.add_slice(1, "x").replicas]
    bound = manager_of(8, islands=2).bind(slices, "f")
    assert [bound[slice].island for slice in slices] == ["island0", "island1"] * 2


def test_manager_puts_replicas_on_one_island_with_room():
    devices = make_virtual_device_set(replicas=3)
    slices = devices.add_slice(2, "x").replicas
    bound = manager_of(8, islands=2).bind(slices, "f")
    assert [bound[slice].island for slice in slices] == ["island0", "island1", "island0"]


def test_manager_spreads_replicas_too_large_for_an_island():
    devices = make_virtual_device_set(replicas=2)
    slices = [slice for _ in range(3) for slice in devices.add_slice(1, "x").replicas]
    bound = manager_of(6, islands=3).bind(slices, "f")
    assert len({bound[slice].positions for slice in slices}) == 6


def test_manager_keeps_the_island_of_a_bound_replica():
    manager, devices = manager_of(8, islands=2), make_virtual_device_set(replicas=2)
    first, second = devices.add_slice(1, "x").replicas, devices.add_slice(1, "x").replicas
    manager.bind([first[1]], "f")
    bound = manager.bind([*first, *second], "g")
    assert bound[first[1]].island == bound[second[1]].island == "island0"
    assert bound[first[0]].island == bound[second[0]].island == "island1"


def test_process_cluster_disconnects_from_managed_devices_that_equal_its_own():
    cluster = ProcessCluster(lambda: cluster_of(2))
    left = []
    cluster.on_disconnect(lambda: left.append(cluster.manager()))
    cluster.connect(lambda: cluster_of(2), ResourceManager)
    shared = cluster.manager()
    cluster.connect(lambda: cluster_of(2))
    assert left == [shared]
    assert cluster.manager() is not shared
    own = cluster.manager()
    cluster.connect(lambda: cluster_of(2))
    assert cluster.manager() is own


def test_manager_plans_where_slices_of_a_closed_island_move():
    """Slices of one program share no device there, either; a slice of another program may share them."""
    manager, devices = manager_of(12, 3), make_virtual_device_set()
    s0, s1, s2 = (devices.add_slice(4, "x") for _ in range(3))
    other = make_virtual_device_set().add_slice(2, "x")
    manager.bind([s0, s1], "f")
    manager.bind([other], "g")
    bound = manager.bind([s0, s1], "f") | manager.bind([other], "g")
    assert [bound[slice].island for slice in (s0, s1, other)] == ["island0", "island1", "island2"]
    planned = manager.close_island("island0", moves_all=True)
    assert {slice: binding.island for slice, binding in planned.items()} == {s0: "island2"}
    # Until it has moved, it stays where it is, and new slices of its programs avoid both places.
    assert manager.bind([s0], "f")[s0].island == "island0"
    with pytest.raises(ResourceError, match=r"there are 8 \(island0: drained, island1: 4, island2: 4\)"):
        manager.bind([s0, s1, s2], "h")
    manager.move(planned)
    assert manager.bind([s0], "f")[s0].positions == (8, 9, 10, 11)
    assert not manager.planned()
    manager.open_island("island0")
    assert manager.bind([s0, s1, s2], "h")[s2].island == "island0"


def test_manager_changes_nothing_where_a_slice_can_move_nowhere():
    manager, devices = manager_of(8, 2), make_virtual_device_set()
    s0, s1 = (devices.add_slice(4, "x") for _ in range(2))
    manager.bind([s0, s1], "f")
    with pytest.raises(ResourceError, match="program f: not enough devices: it needs 8"):
        manager.close_island("island1", moves_all=True)
    assert not manager.planned()
    assert manager.close_island("island1", moves_all=False) == {}
    manager.open_island("island1")
    manager.release(s1)
    assert manager.close_island("island0", moves_all=True)[s0].island == "island1"


def test_manager_plans_no_moves_of_pinned_slices():
    manager, devices = manager_of(8, 2), make_virtual_device_set()
    pinned, free = devices.add_slice(2, "x", island="island0"), devices.add_slice(2, "x")
    manager.bind([pinned, free], "f")
    assert [*manager.close_island("island0", moves_all=True)] == [free]


def test_manager_moves_replicas_to_different_islands():
    """Each replica is on an island of its own then, too."""
    manager, devices = manager_of(16, 4), make_virtual_device_set(replicas=2)
    slice = devices.add_slice(4, "x")
    bound = manager.bind(slice.replicas, "f")
    first, second = (bound[replica].island for replica in slice.replicas)
    (moved,) = manager.close_island(first, moves_all=True).values()
    assert len({first, second, moved.island}) == 3


def test_manager_plans_moves_of_two_islands_apart():
    """Until the first slice has moved, its new devices are taken."""
    manager, devices = manager_of(16, 4), make_virtual_device_set()
    s0, s1 = (devices.add_slice(4, "x") for _ in range(2))
    manager.bind([s0, s1], "f")
    planned = manager.close_island("island0", moves_all=True) | manager.close_island(
        "island1", moves_all=True
    )
    assert {planned[s0].island, planned[s1].island} == {"island2", "island3"}
