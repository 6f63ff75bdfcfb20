"""A report as one HTML page that needs nothing else: style and pictures inside, no scripts, no links.

It follows the reader's light or dark setting, fits a phone, and prints.
"""

import base64
import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.flows._base import Figure, Report, Table
from headrace.storage.files import write_bytes

CARDS = 6  # numbers shown large
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4; --page: #ffffff; --card: #f5f7f9;
  --accent: #0072b2; --bad: #b3260b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa4ae; --line: #353c44; --page: #14171a;
  --card: #1d2126; --accent: #5cb3e6; --bad: #ff8a70; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 62rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .6rem; }
p.path { margin: 0; color: var(--soft); font: .85rem ui-monospace, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
dl.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem;
  margin: 1.75rem 0 0; }
dl.cards > div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem .9rem;
  display: flex; flex-direction: column-reverse; justify-content: flex-end; }
dl.cards dt { color: var(--soft); font-size: .85rem; }
dl.cards dd { margin: 0; font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.3; }
figure { margin: 0; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #fff;
  border: 1px solid var(--line); border-radius: .5rem; padding: .6rem; }
figcaption, p.note { color: var(--soft); font-size: .9rem; margin: .5rem 0 0; max-width: 48rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .35rem .75rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; border-bottom-width: 2px; vertical-align: bottom; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
td.name { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .85rem; white-space: nowrap; }
td.text { overflow-wrap: break-word; }
.no { color: var(--bad); font-weight: 600; }
details { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
summary { cursor: pointer; font-weight: 600; font-size: 1.1rem; }
sup { line-height: 0; font-size: .75em; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } h2 { break-after: avoid; }
  figure, dl.cards, tr { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; } }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(report: Report, descriptions: Mapping[str, str] | None = None) -> str:
    """Return the page as text.

    Parameters
    ----------
    report : what a flow found
    descriptions : meaning of the report's metrics by name; ``bound.VARIABLE`` describes all that start with ``bound.``
    """
    title = html.escape(report.title)
    body = [
        f"<header><h1>{title}</h1>",
        f'<p class="path">{html.escape(str(report.path))}</p></header>' if report.path.parts else "</header>",
        _cards(report.metrics),
        *(_figure(figure) for figure in report.figures),
        *(_table(table) for table in report.tables),
        _numbers(report.metrics, descriptions or {}),
        _provenance(report.provenance),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><meta name="generator" content="headrace">'
        f"<title>{title}</title><style>{STYLE}</style>"
    )
    content = "\n".join(part for part in body if part)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{content}\n</body></html>\n'


def write_page(report: Report, path: Path, descriptions: Mapping[str, str] | None = None) -> None:
    """Write the page; it appears whole or not at all.

    Parameters
    ----------
    report, descriptions : see ``page``
    path : of the file, for instance ``report.html`` in the run folder

    Raises
    ------
    StoreError
        The file cannot be written.
    """
    write_bytes(path, page(report, descriptions).encode("utf-8", errors="backslashreplace"))


def number(value: float) -> str:
    """A number as HTML: whole ones in full with thousands apart, others with four digits, powers of ten raised."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if float(value).is_integer() and abs(value) < 1e12:
        return f"{int(value):,}".replace(",", "&#8239;").replace("-", "&minus;")
    text = f"{value:.4g}"
    mantissa, _, exponent = text.partition("e")
    mantissa = mantissa.replace("-", "&minus;")
    if not exponent:
        return mantissa
    return f"{mantissa}&#8239;×&#8239;10<sup>{str(int(exponent)).replace('-', '&minus;')}</sup>"  # noqa: RUF001


def _cards(metrics: Mapping[str, float]) -> str:
    first = list(metrics.items())[:CARDS]
    cards = "".join(f"<div><dt>{_words(name)}</dt><dd>{number(value)}</dd></div>" for name, value in first)
    return f'<dl class="cards">{cards}</dl>' if cards else ""


def _figure(figure: Figure) -> str:
    data = base64.b64encode(figure.png).decode("ascii")
    text = html.escape(figure.caption)
    caption = f"<figcaption>{text}</figcaption>" if text else ""
    alt = html.escape(f"{figure.title}. {figure.caption}".strip(), quote=True)
    return (
        f"<section><h2>{html.escape(figure.title)}</h2>"
        f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">{caption}</figure></section>'
    )


def _table(table: Table) -> str:
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    return f"<section><h2>{html.escape(table.title)}</h2>{_grid(table.columns, table.rows)}{note}</section>"


def _grid(columns: Sequence[str], rows: Sequence[Sequence[Any]], names: int = -1) -> str:
    """A table; column ``names`` holds names to type, columns with nothing but numbers stand to the right."""
    numeric = [bool(rows) and all(_is_number(row[k]) or row[k] is None for row in rows) for k in range(len(columns))]
    kinds = ["name" if k == names else "number" if right else "text" for k, right in enumerate(numeric)]
    head = "".join(
        f'<th scope="col" class="{kind}">{html.escape(str(column))}</th>'
        for kind, column in zip(kinds, columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{_cell(value)}</td>' for kind, value in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else '<span class="no">no</span>'
    return number(value) if _is_number(value) else html.escape(str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(name: str) -> str:
    return html.escape(name.replace("_", " "))


def _numbers(metrics: Mapping[str, float], descriptions: Mapping[str, str]) -> str:
    if not metrics:
        return ""
    families = {re.sub(r"\.[A-Z]+$", ".", name): text for name, text in descriptions.items()}
    rows = [
        (name, value, families.get(name) or families.get(name.partition(".")[0] + ".", ""))
        for name, value in metrics.items()
    ]
    if not any(text for _, _, text in rows):
        return f"<section><h2>All numbers</h2>{_grid(('name', 'value'), [row[:2] for row in rows], names=0)}</section>"
    return f"<section><h2>All numbers</h2>{_grid(('name', 'value', 'meaning'), rows, names=0)}</section>"


def _provenance(provenance: Mapping[str, Any]) -> str:
    rows = list(_flat(provenance))
    if not rows:
        return ""
    return f"<details><summary>Provenance</summary>{_grid(('what', 'value'), rows, names=0)}</details>"


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, ", ".join(map(str, value))
        else:
            yield name, "" if value is None else str(value)
