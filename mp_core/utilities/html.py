"""HTML tables for notebooks: small, sortable, in the colours of the page."""

from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["Report", "html_table"]

_STYLE = (
    ".mp-core{max-height:24em;max-width:100%;overflow:auto;display:inline-block}"
    ".mp-core table{border-collapse:collapse;font-size:90%;color:inherit;background:none}"
    ".mp-core caption{caption-side:top;text-align:left;color:inherit;padding:.2em 0;white-space:normal}"
    ".mp-core th,.mp-core td{padding:.15em .7em;text-align:right;white-space:nowrap;border:0;"
    "border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent)}"
    ".mp-core th{cursor:pointer}"
    ".mp-core .text{text-align:left}"
)
# JavaScript: sort the rows by the clicked column, numbers by value, texts alphabetically.
_SORT = (
    "const t=this.closest('table').tBodies[0],i=this.cellIndex,d=this.dataset.d=-(this.dataset.d||-1),"
    "n=r=>r.cells[i].textContent;"
    "[...t.rows].sort((a,b)=>d*(n(a)-n(b)||n(a).localeCompare(n(b)))).forEach(r=>t.append(r))"
)


def html_table(rows: Sequence[Sequence[str]], caption: str, left: Collection[int] = (0,)) -> str:
    """Return an HTML table with a caption; the first row is the head, and a click on it sorts by its column.

    Cells of numbers must contain only the number, so that they sort by value: write units in the head. The columns
    `left` are text, aligned left.

    >>> html_table([["policy", "MB"], ["int8", "9.0"]], "two < three").partition("<tbody>")[2]
    '<tr><td class="text">int8</td><td>9.0</td></tr></tbody></table></div>'
    """

    def line(cells: Sequence[str], tag: str, more: str = "") -> str:
        kinds = [' class="text"' if i in left else "" for i in range(len(cells))]
        parts = (f"<{tag}{kind}{more}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))
        return f"<tr>{''.join(parts)}</tr>"

    head, *body = rows
    sorts = f' onclick="{_SORT}" title="sort"'
    return (
        f'<div class="mp-core"><style>{_STYLE}</style><table><caption>{escape(caption)}</caption>'
        f"<thead>{line(head, 'th', sorts)}</thead>"
        f"<tbody>{''.join(line(cells, 'td') for cells in body)}</tbody></table></div>"
    )


class Report(dict[str, Any]):
    """A dict that a notebook shows as a table.

    The rows are its longest list of dicts. The caption has its plain values, and columns whose values are all equal.
    """

    def _repr_html_(self) -> str:
        lists = [value for value in self.values() if isinstance(value, list)]
        entries = max((value for value in lists if value and isinstance(value[0], Mapping)), key=len, default=[])
        columns = {name: [_cell(row.get(name)) for row in entries] for name in (entries[0] if entries else ())}
        varied = {name: x for name, x in columns.items() if len(x) == 1 or x.count(x[0]) < len(x)}
        numbers = {name for row in entries for name, value in row.items() if isinstance(value, int | float)}
        text = [i for i, name in enumerate(varied) if name not in numbers]
        plain = {key: _cell(value) for key, value in self.items() if isinstance(value, str | int | float)}
        plain |= {name: x[0] for name, x in columns.items() if name not in varied and x[0]}
        caption = [f"{key}: {value}" for key, value in plain.items()]
        caption += [f"failed: {x}" for x in self.get("failed", ())]
        return html_table([list(varied), *zip(*varied.values(), strict=True)], "; ".join(caption), text)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " x ".join(map(str, value))
    return "" if value is None or isinstance(value, Mapping) else str(value)
