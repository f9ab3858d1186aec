"""Tables of generated pages."""

from __future__ import annotations

from collections.abc import Iterable


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a Markdown table, nothing when it has no rows."""
    lines = [header, ("---",) * len(header), *rows]
    if len(lines) == 2:
        return ""
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
