from pathlib import Path

import pytest

from headrace.flows._base import Figure, Report, Table
from headrace.flows._text import cell, columns, markdown, plain, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1104000.0, "1104000"),
        (0.00328217, "0.003282"),
        (-2.5, "-2.5"),
        (1e15, "1e+15"),
        (float("nan"), "nan"),
        (True, "yes"),
        (None, ""),
        (12, "12"),
        ("sperr", "sperr"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "unknown"), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB"), (3.2e16, "3.2e+04 TB")],
)
def test_sizes(count: float | None, text: str) -> None:
    assert size(count) == text


def test_columns_are_aligned_without_blanks_at_the_end() -> None:
    assert columns(("name", "n"), [("a", 10), ("longer", 2)]).splitlines() == ["name    n", "a       10", "longer  2"]


def test_a_report_for_a_terminal_and_for_prefect(tmp_path: Path) -> None:
    table = Table("Codecs", ("codec", "ratio"), [("sperr|x", 12.5)], note="Same frames.")
    report = Report("A title", {"ratio": 7.0, "max_error": 1e-3}, [table], [Figure("Curve", b"")], {}, tmp_path)
    lines = plain(report).splitlines()
    assert lines[0] == "A title"
    assert "  ratio      7" in lines
    assert lines[-1] == f"run folder  {tmp_path}"
    (tmp_path / "report.html").touch()
    assert plain(report).splitlines()[-1] == f"report      {tmp_path / 'report.html'}"
    text = markdown(report)
    assert text.startswith("# A title\n")
    assert "| codec | ratio |\n| --- | --- |\n| sperr\\|x | 12.5 |" in text
    assert "Same frames." in text
    assert "Curve" in text
