"""The report page: self-contained, escaped, well-formed, and readable numbers."""

import base64
import html
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Canvas

from headrace.flows._base import Figure, Report, Table
from headrace.flows._html import CARDS, number, page, write_page
from headrace.storage.errors import StoreError

VOID = {"meta", "img", "br", "hr"}
NASTY = "<script>alert(\"1\")</script> & 'quoted'"


class Page(HTMLParser):
    """Checks that tags nest, and gathers text, attributes and table cells."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.seen, self.attributes, self.words, self.cells = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.stack.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] not in ("style", "title"):
            self.words.append(data)
            if {"td", "th"} & set(self.stack):
                self.cells[-1] += data


@pytest.fixture(scope="module")
def png():
    buffer = io.BytesIO()
    Canvas(figsize=(1, 1)).savefig(buffer, format="png", dpi=20)
    return buffer.getvalue()


@pytest.fixture
def report(png):
    return Report(
        "Compression of a test",
        {"ratio": 24.8125, "kept": 12.0, "bytes_on_disk": 112636.0, "max_error.w": 9.7e-4},
        [Table("Codecs", ("codec", "ratio", "held"), [("this run", 24.8, True), ("plain", 1234567, False)], "A note.")],
        [Figure("A curve", png, "What it shows.")],
        {"versions": {"numpy": "2.4.6"}, "command": ["headrace", "run"], "commit": None},
        Path("runs/compress/0123"),
    )


def test_nothing_is_loaded_from_elsewhere(report):
    text = page(report)
    parsed = Page(text)
    sources = [value for tag, name, value in parsed.attributes if name in ("src", "href", "data", "action", "srcset")]
    assert len(sources) == 1
    assert sources[0].startswith("data:image/png;base64,")
    assert not re.search(r"https?://|@import|url\(", text)
    assert {"script", "link", "iframe", "object"}.isdisjoint(parsed.seen)
    assert ("meta", "http-equiv", "Content-Security-Policy") in parsed.attributes


def test_pictures_are_inside_whole_and_described(report, png):
    attributes = {(tag, name): value for tag, name, value in Page(page(report)).attributes}
    assert base64.b64decode(attributes["img", "src"].partition(",")[2]) == png
    assert attributes["img", "alt"] == "A curve. What it shows."
    assert attributes["html", "lang"] == "en"


def test_everything_of_the_report_is_on_the_page(report):
    parsed = Page(page(report, {"ratio": "raw over stored", "max_error.VARIABLE": "largest error"}))
    shown = " ".join(parsed.words)
    for text in ("Compression of a test", "runs/compress/0123", "A curve", "What it shows.", "Codecs", "A note."):
        assert text in shown
    assert parsed.seen.count("h1") == 1
    for cell in ("this run", "24.8", "yes", "no", "numpy", "max_error.w", "raw over stored", "largest error"):
        assert any(cell in found for found in parsed.cells), cell
    assert "headrace, run" in parsed.cells
    assert "versions.numpy" in parsed.cells


def test_first_numbers_stand_large_and_all_are_listed():
    metrics = {f"m{k}": k + 0.5 for k in range(CARDS + 3)}
    parsed = Page(page(Report("x", metrics)))
    assert parsed.seen.count("dd") == CARDS
    assert all(name in parsed.cells for name in metrics)


@given(text=st.text())
def test_text_of_any_kind_is_escaped(text):
    report = Report(
        text,
        {text: 1.0},
        [Table(text, (text, "n"), [(text, 1)], text)],
        [Figure(text, b"", text)],
        {text: {text: text}},
        Path("x"),
    )
    parsed = Page(page(report, {text: text}))
    assert {"script", "b", "i"}.isdisjoint(parsed.seen)


def test_markup_in_names_stays_text():
    parsed = Page(page(Report(NASTY, {NASTY: 1.0}, [Table(NASTY, (NASTY,), [(NASTY,)])], [Figure(NASTY, b"x", NASTY)])))
    assert "script" not in parsed.seen
    assert NASTY in parsed.cells
    assert ("img", "alt", f"{NASTY}. {NASTY}") in parsed.attributes


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12.0, "12"),
        (112636.0, "112\u202f636"),
        (-1234567, "\u22121\u202f234\u202f567"),
        (24.8125, "24.81"),
        (0.001234, "0.001234"),
        (9.7e-5, "9.7\u202f\u00d7\u202f10<sup>\u22125</sup>"),
        (-2.5e20, "\u22122.5\u202f\u00d7\u202f10<sup>20</sup>"),
        (float("inf"), "\u221e"),
        (float("nan"), "not a number"),
    ],
)
def test_numbers_are_written_for_people(value, text):
    assert html.unescape(number(value)) == html.unescape(text)


def test_columns_of_numbers_stand_to_the_right(report):
    kinds = [value for tag, name, value in Page(page(report)).attributes if tag == "th" and name == "class"]
    assert kinds[:3] == ["text", "number", "text"]


def test_an_empty_report_is_a_page_too():
    parsed = Page(page(Report("Nothing yet", {})))
    assert "Nothing yet" in parsed.words
    assert {"table", "figure", "dl", "details"}.isdisjoint(parsed.seen)


def test_the_page_appears_whole(report, tmp_path):
    path = tmp_path / "report.html"
    write_page(report, path)
    assert path.read_text(encoding="utf-8") == page(report)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    write_page(Report("x", {}, path=Path("broken-\udcff-name")), path)  # a file name that is no text
    assert "broken-" in path.read_text(encoding="utf-8")
    with pytest.raises(StoreError):
        write_page(report, tmp_path / "missing" / "report.html")
