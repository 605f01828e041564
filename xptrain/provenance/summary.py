"""Plain-text tables of hazards and differences."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from typing import Final

from xptrain.provenance.diff.difference import Difference
from xptrain.provenance.hazards import Hit

_WIDEST: Final = 38
_ROWS: Final = 30


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, widest: int = _WIDEST) -> str:
    """Lay out rows of text in columns.

    Args:
        header: Names of the columns.
        rows: One text for each column; longer ones than `widest` characters go on in the next line.
        widest: Characters of the widest column.

    Returns:
        Lines without trailing spaces or a final line break.

    Example:
        >>> print(table(["what", "now"], [["cores", "2"]]))
        what   now
        cores  2
    """
    cells = [[textwrap.wrap(text, widest) or [""] for text in row] for row in [header, *rows]]
    widths = [max(len(line) for row in cells for line in row[i]) for i in range(len(header))]
    lines = []
    for row in cells:
        for n in range(max(len(cell) for cell in row)):
            texts = (cell[n] if n < len(cell) else "" for cell in row)
            lines.append(
                "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()
            )
    return "\n".join(lines)


def difference_table(differences: Sequence[Difference], allow: Collection[str] = ()) -> str:
    """Return the differences as a table: what, before, now and what becomes of it, refused ones first.

    Args:
        differences: The differences.
        allow: Categories that the user lets pass.
    """
    ordered = sorted(differences, key=lambda d: (d.severity != "refuse", d.category))
    rows = [
        [
            difference.name,
            difference.before,
            difference.after,
            _fate(difference, allow),
        ]
        for difference in ordered[:_ROWS]
    ]
    text = table(["what", "before", "now", ""], rows)
    notes = [f"- {d.name}: {d.note}" for d in ordered[:_ROWS] if d.note]
    more = [f"and {len(ordered) - _ROWS} more"] if len(ordered) > _ROWS else []
    return "\n".join([text, *more, *dict.fromkeys(notes)])


def _fate(difference: Difference, allow: Collection[str]) -> str:
    if difference.severity != "refuse":
        return "told"
    return "allowed" if difference.category in allow else f"refused; --allow {difference.category}"


def hazard_table(hits: Sequence[Hit]) -> str:
    """Return the hazards as text: one line of what, one of the evidence, the remedy and the source."""
    lines = []
    for hit in hits:
        lines += [f"{hit.severity}: {hit.title}", f"  seen:   {hit.evidence}"]
        lines += [f"  remedy: {hit.remedy}", f"  source: {hit.source}"]
    return "\n".join(lines) if lines else "no known hazard"
