"""Links as users write them."""

from __future__ import annotations

import pytest

from pathways.passes.analysis.links import Link, read_link
from pathways.passes.analysis.quantities import TimesError


@pytest.mark.parametrize(
    ("latency", "bandwidth", "link"),
    [
        ("5us", "10GB/s", Link(5e-6, 1e10)),
        ("0.5 ms", "8Gbit/s", Link(5e-4, 1e9)),
        (None, "2GiB/s", Link(0, 2**31)),
    ],
)
def test_read_link_reads_units(latency, bandwidth, link):
    read = read_link(latency, bandwidth, "s")
    assert read.latency == pytest.approx(link.latency)
    assert read.bandwidth == pytest.approx(link.bandwidth)


@pytest.mark.parametrize(
    ("latency", "bandwidth", "message"),
    [
        ("5", None, "latency: is in time units, but the durations are in seconds"),
        (None, "0GB/s", "bandwidth: must be more than 0"),
        (None, "10GB", "bandwidth: unknown suffix 'GB'"),
        ("-5us", None, "latency: must be a number from 0 up"),
    ],
)
def test_read_link_names_mistakes(latency, bandwidth, message):
    with pytest.raises(TimesError) as error:
        read_link(latency, bandwidth, "s")
    assert str(error.value).startswith(message)
