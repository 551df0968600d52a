"""Tables of results, as text and for notebooks."""
from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_ROWS = 40  # a model has hundreds of dimensions


@dataclass
class Table:
    """Rows of texts under a caption. Marked rows are those that want attention."""

    caption: str
    head: Sequence[str]
    rows: list[Sequence[object]] = field(default_factory=list)
    marked: set[int] = field(default_factory=set)
    more: int = 0  # rows that are left out

    def add(self, *cells: object, mark: bool = False) -> None:
        if len(self.rows) >= MAX_ROWS:
            self.more += 1
            return
        if mark:
            self.marked.add(len(self.rows))
        self.rows.append(cells)

    def texts(self) -> list[list[str]]:
        """Head and rows; nothing where there are no rows."""
        rows = [[show(c) for c in row] for row in self.rows]
        return [list(self.head), *rows] if rows else []

    def right(self) -> list[bool]:
        """Which columns hold numbers and go to the right."""
        rows = self.texts()[1:]
        return [all(is_number(row[i]) for row in rows) for i in range(len(self.head))]

    def text(self) -> str:
        rows, right = self.texts(), self.right()
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = [self.caption] if self.caption else []
        for row in rows:
            cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right)]
            lines.append(("  " + "  ".join(cells)).rstrip())
        if self.more:
            lines.append(f"  and {self.more} more")
        return "\n".join(lines)

    def html(self) -> str:
        lines = []
        for i, row in enumerate(self.texts()):
            kind = "th" if i == 0 else "td"
            weight = ' style="font-weight:bold"' if i - 1 in self.marked else ""
            cells = [f'<{kind} style="text-align:{"right" if right else "left"}">'
                     f"{html.escape(cell)}</{kind}>" for cell, right in zip(row, self.right())]
            lines.append(f"<tr{weight}>{''.join(cells)}</tr>")
        if self.more:
            lines.append(f'<tr><td colspan="{len(self.head)}">and {self.more} more</td></tr>')
        return ('<table><caption style="text-align:left;white-space:nowrap">'
                f"{html.escape(self.caption)}</caption>"
                f"<thead>{''.join(lines[:1])}</thead><tbody>{''.join(lines[1:])}</tbody></table>")


def show(value: object) -> str:
    """A cell: numbers short, truth in words, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return str(value)


def is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-+").replace(".", "", 1).replace("e-", "", 1).isdigit()
