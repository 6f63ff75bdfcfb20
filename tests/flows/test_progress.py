import io

import pytest

from headrace.flows import _progress
from headrace.flows._base import Progress
from headrace.flows._progress import Pace, clock, describe, plain_lines, show_progress


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    time = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: time[0])
    return time


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (245, "4:05"), (7800, "2:10:00")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_rate_leaves_out_what_an_earlier_run_had_done(now: list[float]) -> None:
    pace = Pace()
    assert pace.measure(Progress(500, 1000, "frames")) == (None, None)
    now[0] += 10
    assert pace.measure(Progress(600, 1000, "frames")) == (10.0, 40.0)


def test_rate_without_a_total_has_no_time_left(now: list[float]) -> None:
    pace = Pace()
    pace.measure(Progress(0, None, "frames"))
    now[0] += 2
    assert pace.measure(Progress(8, None, "frames")) == (4.0, None)


def test_a_line_says_everything() -> None:
    line = describe(Progress(120, 200, "frames", "31 kept"), 14.25, 5.6)
    assert line == "120/200 frames, 14.2/s, 6 s left, 31 kept"
    assert describe(Progress(3, None, "frames"), None, None) == "3 frames"


def test_lines_are_rare_and_the_last_one_is_not_lost(now: list[float]) -> None:
    stream = io.StringIO()
    notify = plain_lines("compress", stream, seconds=5)
    for done in range(1, 121):
        now[0] += 0.125
        notify(Progress(done, 120, "frames"))
    notify(Progress(120, 120, "frames"))
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["40/120", "80/120", "120/120"]


def test_a_bar_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    with show_progress("compress", stream) as notify:
        notify(Progress(1, 4, "frames"))
        notify(Progress(4, 4, "frames"))
    assert "4/4 frames" in stream.getvalue()


def test_lines_are_printed_elsewhere() -> None:
    stream = io.StringIO()
    with show_progress("compress", stream) as notify:
        notify(Progress(4, 4, "frames"))
    assert stream.getvalue() == "compress: 4/4 frames\n"
