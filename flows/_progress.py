"""Progress for a person: a bar with rate and time left on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from headrace.flows._base import Notify, Progress

LINE_SECONDS = 5.0
BAR_SECONDS = 0.1


class Pace:
    """Rate and time left, counted from the first notice: what an earlier run had done is no part of the rate."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None

    def measure(self, progress: Progress) -> tuple[float | None, float | None]:
        """Rate [1/s] and time left [s] at this notice; None where not known yet."""
        now = time.monotonic()
        if self.first is None:
            self.first = (now, progress.done)
            return None, None
        seconds, done = now - self.first[0], progress.done - self.first[1]
        if seconds <= 0 or done <= 0:
            return None, None
        rate = done / seconds
        return rate, None if progress.total is None else max(progress.total - progress.done, 0) / rate


def clock(seconds: float) -> str:
    """A duration as people write it: ``9 s``, ``4:05`` or ``2:10:00``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def describe(progress: Progress, rate: float | None, left: float | None) -> str:
    """One line: ``120/200 frames, 14.2/s, 6 s left, note``."""
    of = "" if progress.total is None else f"/{progress.total}"
    parts = [f"{progress.done}{of} {progress.unit}"]
    if rate is not None:
        parts.append(f"{rate:.3g}/s")
    if left is not None and progress.done != progress.total:
        parts.append(f"{clock(left)} left")
    if progress.note:
        parts.append(progress.note)
    return ", ".join(parts)


def plain_lines(title: str, stream: TextIO, seconds: float = LINE_SECONDS) -> Notify:
    """Print a line at most every ``seconds``, and always the last one."""
    pace, last = Pace(), time.monotonic()
    finished = False

    def notify(progress: Progress) -> None:
        nonlocal last, finished
        rate, left = pace.measure(progress)
        now, complete = time.monotonic(), progress.done == progress.total
        if now - last >= seconds or (complete and not finished):
            last, finished = now, complete
            print(f"{title}: {describe(progress, rate, left)}", file=stream, flush=True)

    return notify


@contextmanager
def terminal_bar(title: str, stream: TextIO) -> Iterator[Notify]:
    """A bar that is redrawn in place and taken away at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    pace, last = Pace(), 0.0
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[text]}"))
    with Bar(*columns, console=Console(file=stream), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(title, total=None, text="starting")

        def notify(progress: Progress) -> None:
            nonlocal last
            rate, left = pace.measure(progress)
            now = time.monotonic()
            if now - last >= BAR_SECONDS or progress.done == progress.total:
                last = now
                text = describe(progress, rate, left)
                bar.update(task, completed=progress.done, total=progress.total, text=text, refresh=True)

        yield notify


@contextmanager
def show_progress(title: str, stream: TextIO | None = None) -> Iterator[Notify]:
    """Whatever suits the stream (stderr by default): a bar on a terminal, lines elsewhere."""
    stream = sys.stderr if stream is None else stream
    if stream.isatty():
        with terminal_bar(title, stream) as notify:
            yield notify
    else:
        yield plain_lines(title, stream)
