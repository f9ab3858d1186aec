"""Live bytes and their peaks, by place."""

from pathways.passes.schedule.memory.live_bytes import LiveBytes


def test_live_bytes_peak_is_the_most_alive_at_once():
    live: LiveBytes[str] = LiveBytes()
    for place, size in (("s0", 10), ("s1", 1), ("s0", 20)):
        live.add(place, size)
    live.remove("s0", 10)
    live.add("s0", 5)
    assert live.now == {"s0": 25, "s1": 1}
    assert live.peak == {"s0": 30, "s1": 1}


def test_live_bytes_peak_ignores_replacement():
    live: LiveBytes[int] = LiveBytes()
    live.add(0, 10)
    live.remove(0, 10)
    live.add(0, 10)
    assert live.peak == {0: 10}
