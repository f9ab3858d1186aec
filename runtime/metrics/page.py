"""Page of a cluster: complete as served, without addresses of other servers. `page.js` refreshes it."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from pathways.runtime.metrics.snapshots import STRIP_SECONDS, History, Snapshot, held_of
from pathways.runtime.resources.status import ClientStatus, IslandStatus
from pathways.runtime.resources.tables import age, duration, percent, size

COLOURS = 8
"""Number of colours of clients in `page.css`; more clients share them."""

_OLD_SECONDS = 5.0
"""Age of a snapshot from which the page says that it is old."""

_STRIP_HEIGHT = 24


@functools.cache
def _asset(name: str) -> str:
    return importlib.resources.files("pathways.runtime.metrics").joinpath(name).read_text(encoding="utf-8")


def _hash_of(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY = (
    "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    f"style-src 'sha256-{_hash_of(_asset('page.css'))}'; script-src 'sha256-{_hash_of(_asset('page.js'))}'"
)
"""Content security policy of the page: its own style and script, and requests to its server."""


def page_of(history: History, age_seconds: float) -> str:
    """Returns the page of the last snapshot.

    Args:
      age_seconds: the age of the snapshot.
    """
    snapshot = history.latest
    assert snapshot is not None
    status, name = snapshot.status, escape(snapshot.cluster)
    body = [
        "<header>",
        f"<h1>{name}</h1>",
        f"<p>{_summary(snapshot)}</p>",
        "</header>",
        "<main>",
        _section("problems", "Problems", _problems(snapshot, age_seconds)),
        _section("islands", "Islands", (_island(island, history) for island in status.islands)),
        _section("clients", "Clients", _clients(snapshot, history)),
        _section("hosts", "Hosts", _hosts(snapshot)),
        "</main>",
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<noscript><meta http-equiv="refresh" content="5"></noscript>',
            f"<title>{name}: cluster</title>",
            f"<style>{_asset('page.css')}</style></head><body>",
            *body,
            f"<script>{_asset('page.js')}</script>",
            "</body></html>",
            "",
        ]
    )


def _section(name: str, title: str, lines: Iterable[str]) -> str:
    heading = f'<h2 id="{name}-title">{title}</h2>'
    return "\n".join([f'<section id="{name}" aria-labelledby="{name}-title">', heading, *lines, "</section>"])


def _summary(snapshot: Snapshot) -> str:
    status = snapshot.status
    running = sum(island.state == "running" for island in status.islands)
    queued = sum(client.queued for client in status.clients)
    parts = [
        f"{running} of {_count(len(status.islands), 'island')} running",
        _count(len(status.clients), "client"),
        f"{_count(queued, 'step')} waiting",
        f"process {status.pid}, for {age(status.time - status.since)}",
    ]
    return "; ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else f'{noun}s'}"


def _problems(snapshot: Snapshot, age_seconds: float) -> Iterator[str]:
    status = snapshot.status
    problems = [f"{island.name}: {island.problem}" for island in status.islands if island.problem is not None]
    if age_seconds > _OLD_SECONDS:
        problems.append(f"the service has sent nothing for {age(age_seconds)}")
    if status.spares is not None and status.spares.ready < status.spares.count:
        problems.append(str(status.spares))
    if not problems:
        yield "<p>none</p>"
        return
    yield '<ul role="status">'
    yield from (f"<li>{escape(problem)}</li>" for problem in problems)
    yield "</ul>"


def _island(island: IslandStatus, history: History) -> str:
    free = "" if island.free_memory is None else f", {size(island.free_memory)} free on a device"
    lost = f", lost {_count(island.losses, 'time')}" if island.losses else ""
    machines = ", ".join(dict.fromkeys(host.machine or "-" for host in island.hosts))
    hosts, devices = _count(len(island.hosts), "host"), _count(island.devices, "device")
    facts = f"{hosts}, {devices}{free}{lost}; on {machines}"
    state = escape(island.state)
    shares = history.shares(island.name)
    return "\n".join(
        [
            '<article class="island">',
            f'<h3>{escape(island.name)} <span class="state {state}">{state}</span></h3>',
            f"<p>{escape(facts)}</p>",
            _strip(island, history),
            '<p class="ends"><span>60 s ago</span><span>now</span></p>',
            f'<p class="legend">{_legend(shares, history)}</p>',
            "</article>",
        ]
    )


def _strip(island: IslandStatus, history: History) -> str:
    """Returns the use of an island in the last minute: time to the right, and clients above each other."""
    text = ", ".join(f"{name} {percent(share)}" for name, share in history.shares(island.name).items())
    label = escape(f"{island.name}, last minute: {text or 'idle'}")
    parts = [
        f'<svg class="strip" role="img" viewBox="0 0 {STRIP_SECONDS:g} {_STRIP_HEIGHT}" '
        f'preserveAspectRatio="none" aria-label="{label}">',
        f'<rect class="idle" width="{STRIP_SECONDS:g}" height="{_STRIP_HEIGHT}"/>',
    ]
    assert history.latest is not None
    now = history.latest.status.time
    for interval in history.intervals:
        left, top = STRIP_SECONDS - (now - interval.begin), float(_STRIP_HEIGHT)
        begin, width = max(0.0, left), interval.seconds + min(0.0, left)
        used = interval.used.get(island.name, {})
        for client in sorted(used, key=lambda name: history.colours[name]):
            height = min(top, used[client] * _STRIP_HEIGHT)
            top -= height
            if width > 0 and height > 0:
                parts.append(
                    f'<rect class="{_colour(client, history)}" x="{begin:.2f}" y="{top:.2f}" '
                    f'width="{width:.2f}" height="{height:.2f}"/>'
                )
    return "".join([*parts, "</svg>"])


def _legend(shares: dict[str, float], history: History) -> str:
    if not shares:
        return "idle"
    return " ".join(
        f"<span>{_swatch(client, history)}{escape(client)} {percent(share)}</span>"
        for client, share in shares.items()
    )


def _clients(snapshot: Snapshot, history: History) -> Iterator[str]:
    clients = snapshot.status.clients
    if not clients:
        yield "<p>none</p>"
        return
    held, weights = held_of(snapshot.accounts), sum(client.weight for client in clients)
    heads = (
        "client",
        "weight",
        "share",
        "queued",
        "steps",
        "device time",
        "holds",
        "quota on a device",
        "from",
        "since",
    )
    yield from _table(
        "clients",
        heads,
        [
            (
                f"{_swatch(client.name, history)}{escape(client.name)}",
                escape(client.share),
                percent(client.weight / weights),
                str(client.queued),
                str(client.steps_done),
                duration(client.device_seconds, "s"),
                size(held.get(client.name, 0)),
                _quota(client),
                escape(client.address if client.process is None else f"{client.user}@{client.machine}"),
                age(snapshot.status.time - client.since),
            )
            for client in clients
        ],
    )


def _quota(client: ClientStatus) -> str:
    """Returns the memory of a client against its quota, on the device where it has most."""
    if client.held is None:
        return "-"
    if client.quota is None:
        return f"{size(client.held)} of a shared one"
    meter = f'<meter min="0" max="{client.quota}" value="{client.held}"></meter>'
    return f"{meter} {size(client.held)} of {size(client.quota)}"


def _hosts(snapshot: Snapshot) -> Iterator[str]:
    rows = [
        (
            str(host.host),
            escape(island.name),
            escape(host.machine or "-"),
            escape(host.address or "-"),
            str(host.pid),
            age(snapshot.status.time - host.since),
            "?" if host.arrays is None else str(host.arrays),
            "?" if host.bytes is None else size(host.bytes),
        )
        for island in snapshot.status.islands
        for host in island.hosts
    ]
    yield from _table(
        "hosts", ("host", "island", "machine", "address", "process", "since", "arrays", "bytes"), rows
    )


def _table(name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields a table of cells in HTML, which scrolls sideways by keyboard, too."""
    label = f'role="region" aria-labelledby="{name}-title"'
    yield f'<div class="scroll" id="{name}-table" tabindex="0" {label}><table>'
    yield f"<thead><tr>{''.join(f'<th scope="col">{head}</th>' for head in heads)}</tr></thead><tbody>"
    for first, *cells in rows:
        yield f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    yield "</tbody></table></div>"


def _swatch(client: str, history: History) -> str:
    return f'<i class="swatch {_colour(client, history)}"></i>'


def _colour(client: str, history: History) -> str:
    return f"c{history.colours[client] % COLOURS}" if client in history.colours else "c-none"
