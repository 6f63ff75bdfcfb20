"""A report on the disk: ``report.json`` for programs, ``report.html`` for people."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headrace.flows._base import Report, Table
from headrace.flows._html import write_page
from headrace.storage.runs import Run


def save_report(out: Run, report: Report, descriptions: Mapping[str, str] | None = None) -> None:
    """Write both files; the figures are in the page only.

    Parameters
    ----------
    out
        The open run folder.
    report
        What the run found.
    descriptions
        Meaning of the metrics by name.

    Raises
    ------
    StoreError
        The folder cannot be written.
    """
    write_page(report, out.path / "report.html", descriptions)
    out.write_report(
        {
            "title": report.title,
            "metrics": report.metrics,
            "tables": [asdict(table) for table in report.tables],
            "figures": [figure.title for figure in report.figures],
            "provenance": report.provenance,
        }
    )


def load_report(out: Run) -> Report:
    """Read what ``save_report`` wrote; the figures stay in ``report.html``.

    Raises
    ------
    StoreError
        There is no report, or it is damaged.
    """
    content: dict[str, Any] = out.read_report()
    tables = [Table(**table) for table in content["tables"]]
    return Report(content["title"], dict(content["metrics"]), tables, [], dict(content["provenance"]), out.path)
