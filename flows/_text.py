"""A report as plain text for a terminal and as markdown for Prefect."""

from collections.abc import Sequence
from typing import Any

from headrace.flows._base import Report, Table

LARGEST_WHOLE = 1e12


def cell(value: Any) -> str:
    """A table cell: whole numbers in full, others with four significant digits, everything else as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < LARGEST_WHOLE else f"{value:.4g}"
    return "" if value is None else str(value)


def columns(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lines of aligned columns, the header first."""
    lines = [[str(name) for name in header], *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(header))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def size(count: float | None) -> str:
    """A number of bytes as people read it: ``1.5 MB``."""
    if count is None:
        return "unknown"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"


def plain(report: Report) -> str:
    """The report for a terminal: title, numbers, and where everything is."""
    lines = [report.title, ""]
    width = max(map(len, report.metrics), default=0)
    lines += [f"  {name:<{width}}  {cell(value)}" for name, value in report.metrics.items()]
    page = report.path / "report.html"
    lines += ["", f"run folder  {report.path}", *([f"report      {page}"] if page.is_file() else [])]
    return "\n".join(lines)


def markdown(report: Report) -> str:
    """The report for Prefect: title, numbers and tables; the figures are in the run folder."""
    numbers = Table("Numbers", ("name", "value"), list(report.metrics.items()))
    parts = [f"# {report.title}", f"Run folder: `{report.path}`"]
    parts += [part for table in (numbers, *report.tables) for part in _markdown_table(table)]
    if report.figures:
        parts.append(
            "Figures are in `report.html` in the run folder: " + ", ".join(f.title for f in report.figures) + "."
        )
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> list[str]:
    rows = [[str(name) for name in table.columns], ["---"] * len(table.columns)]
    rows += [[cell(value).replace("|", "\\|") for value in row] for row in table.rows]
    parts = [f"## {table.title}", "\n".join("| " + " | ".join(row) + " |" for row in rows)]
    return [*parts, table.note] if table.note else parts
