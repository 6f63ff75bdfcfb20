"""Gates decide, while frames stream past, which of them are kept.

A gate sees every frame once, in order, with its metrics, and answers with the frames to keep now. It holds at most two
frames. The swinging-door gate (Bristol, "Swinging door trending", ISA 1990) guarantees that straight lines between
kept frames stay within a tolerance of every metric at every frame offered, and needs one frame of delay for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.storage.errors import ParameterError
from headrace.tasks.insitu.metrics import pearson

Frame = dict[str, NDArray[Any]]
State = tuple[dict[str, NDArray[Any]], dict[str, Any]]

# Relative rounding error of a linear interpolation and of the slopes compared here, with a margin of about two.
ROUNDING = 16 * float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, slots=True)
class Kept:
    """A frame to keep: its number among the frames offered, its time, its fields."""

    index: int
    time: float
    frame: Frame


class Gate(Protocol):
    """What a stream asks of a gate."""

    def offer(self, index: int, time: float, metrics: Sequence[float], frame: Frame) -> list[Kept]:
        """Take one frame; return the frames to keep now, in order of time. The frame must not be changed later."""

    def close(self) -> list[Kept]:
        """End the stream; return what is still to be kept."""

    def state(self) -> State:
        """Arrays and JSON values from which ``restore`` continues bit for bit."""

    def restore(self, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
        """Take over a saved state."""


class KeepAll:
    """Keeps every frame. Metrics may be anything; times must increase."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._closed = False

    def offer(self, index: int, time: float, metrics: Sequence[float], frame: Frame) -> list[Kept]:  # noqa: ARG002
        """Keep the frame.

        Raises
        ------
        ParameterError -- the time is not finite or not after the one before (names both), or the gate is closed.
        """
        check_open(self._closed)
        check_time(self._last, index, time)
        self._last = (index, time)
        return [Kept(index, time, frame)]

    def close(self) -> list[Kept]:
        """End the stream; nothing is pending."""
        self._closed = True
        return []

    def state(self) -> State:
        """Index and time of the last frame."""
        index, time = self._last or (-1, math.nan)
        return {"time": np.asarray(time, dtype=np.float64)}, {"gate": "keep-all", "index": index}

    def restore(self, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
        """Take over what ``state`` returned."""
        check_kind(meta, "keep-all")
        self._last = (meta["index"], float(arrays["time"])) if meta["index"] >= 0 else None
        self._closed = False


class SwingingDoor:
    """Keeps the fewest frames it can see to keep while metrics stay linear, within a tolerance, between kept ones.

    From the last kept frame, the anchor, each metric has a door: the range of slopes of lines that pass within the
    tolerance of every frame since. A frame whose own slope lies outside any door cannot end a line from the anchor, so
    the frame before it is kept and becomes the anchor. The first and the last frame of a stream are always kept.

    Guarantee: with ``t, y`` of the kept frames, ``abs(np.interp(t_k, t, y) - y_k) <= tolerance`` (or
    ``tolerance * abs(y_k)``) for every metric of every frame offered, rounding included.

    Parameters
    ----------
    tolerance : of the metrics, >= 0; relative to the metric's own value, or in its units.
    relative : whether ``tolerance`` multiplies ``abs(y_k)``.
    max_gap : largest distance between kept frames, in frames offered, >= 1.
    c_min : when given, a line also ends before a frame whose correlation with the anchor is below this, in [-1, 1]; so
        every frame dropped, and every frame kept but those that the one before already was unlike, has at least this
        correlation with the kept frame before it.
    correlate : variable whose fields are correlated; by default the first of the frame.
    names : of the metrics, for messages.

    Raises
    ------
    ParameterError -- a parameter is out of range.
    """

    def __init__(
        self,
        tolerance: float,
        relative: bool = True,
        max_gap: int = 64,
        c_min: float | None = None,
        correlate: str | None = None,
        *,
        names: Sequence[str] = (),
    ) -> None:
        _check_settings(tolerance, max_gap, c_min)
        self.tolerance, self.relative, self.max_gap = tolerance, relative, max_gap
        self.c_min, self.correlate, self.names = c_min, correlate, tuple(names)
        self._anchor: _Offered | None = None
        self._prev: _Offered | None = None  # the last frame offered, not yet kept
        self._doors: list[_Door] = []
        self._gap = 0  # frames offered since the anchor
        self._closed = False

    def offer(self, index: int, time: float, metrics: Sequence[float], frame: Frame) -> list[Kept]:
        """Take one frame; return the frame before it when that one has to be kept.

        Parameters
        ----------
        index : number of the frame in the stream
        time : of the frame; larger than that of the frame before
        metrics : the scalars watched, always the same number of them
        frame : fields by name; held by reference, so the caller must not change them

        Raises
        ------
        ParameterError -- the time does not increase (names both times), a metric is not finite (names it and the time),
            the number of metrics changed, or the gate is closed.
        """
        self._check_offer(index, time, metrics)
        this = _Offered(index, time, tuple(float(value) for value in metrics), frame)
        anchor, prev = self._anchor, self._prev
        if anchor is None:
            self._start(this)
            return [this.kept()]
        if prev is None or (self._admits(anchor, this) and self._correlated(anchor, this)):
            self._follow(anchor, this)
            return []
        self._follow(self._start(prev), this)
        return [prev.kept()]

    def close(self) -> list[Kept]:
        """End the stream; the last frame offered is kept if it was not."""
        self._closed = True
        pending, self._prev = self._prev, None
        return [pending.kept()] if pending else []

    def _start(self, anchor: _Offered) -> _Offered:
        if self.c_min is None:  # the anchor's fields only serve the correlation
            anchor = replace(anchor, frame={})
        self._anchor, self._prev, self._gap = anchor, None, 0
        self._doors = [_Door() for _ in anchor.metrics]
        return anchor

    def _admits(self, anchor: _Offered, this: _Offered) -> bool:
        """Whether a line from the anchor to this frame is a good one for all frames between."""
        if self._gap >= self.max_gap:
            return False
        return all(door.admits(slope) for door, slope in zip(self._doors, anchor.slopes(this), strict=True))

    def _follow(self, anchor: _Offered, this: _Offered) -> None:
        """Let this frame wait as the possible end of the line, and swing the doors it passes through."""
        # A frame unlike even the one before it has to be kept: no line may go on beyond it.
        ends = self._gap == 0 and not self._correlated(anchor, this)
        span = this.time - anchor.time
        for door, slope, y, start in zip(self._doors, anchor.slopes(this), this.metrics, anchor.metrics, strict=True):
            tolerance = self.tolerance * abs(y) if self.relative else self.tolerance
            room = tolerance - ROUNDING * (abs(y) + abs(start) + tolerance) - TINY
            if ends:
                door.shut()
            elif room >= 0:
                door.swing(slope, (y - room - start) / span, (y + room - start) / span)
            elif y == start and door.admits(0.0):  # no room for rounding, but a level line has none
                door.low = door.high = 0.0
            else:
                door.shut()
        self._prev, self._gap = this, self._gap + 1

    def _correlated(self, anchor: _Offered, this: _Offered) -> bool:
        if self.c_min is None:
            return True
        name = self.correlate or next(iter(this.frame))
        if name not in this.frame:
            raise ParameterError(
                f"variable {name!r} is not in the frame at t={this.time:g};",
                f"one of {', '.join(map(repr, this.frame))} was expected.",
                "Name one of them to correlate.",
            )
        return pearson(this.frame[name], anchor.frame[name]) >= self.c_min

    def _check_offer(self, index: int, time: float, metrics: Sequence[float]) -> None:
        check_open(self._closed)
        last = self._prev or self._anchor
        check_time((last.index, last.time) if last else None, index, time)
        expected = len(last.metrics) if last else max(len(metrics), 1)
        if len(metrics) != expected:
            raise ParameterError(
                f"{len(metrics)} metrics came with the frame at t={time:g};",
                f"{expected} {'was' if expected == 1 else 'were'} expected.",
                "Watch the same metrics, at least one, in the whole stream.",
            )
        for number, value in enumerate(metrics):
            if not math.isfinite(value):
                name = self.names[number] if number < len(self.names) else str(number)
                raise ParameterError(
                    f"metric {name!r} is not finite at t={time:g} (frame {index}): {value};",
                    "a finite number was expected.",
                    "Keep every frame of such a stream, or watch another metric.",
                )

    # ----------------------------------------------------------------- saving and restoring

    def _settings(self) -> dict[str, Any]:
        return {
            "gate": "swinging-door",
            "tolerance": repr(self.tolerance),
            "relative": self.relative,
            "max_gap": self.max_gap,
            "c_min": None if self.c_min is None else repr(self.c_min),
            "correlate": self.correlate,
        }

    def state(self) -> State:
        """Everything needed to continue: doors, the anchor's and the waiting frame's numbers and fields."""
        arrays: dict[str, NDArray[Any]] = {
            "doors": np.array([(door.low, door.high) for door in self._doors], dtype=np.float64).reshape(-1, 2)
        }
        meta = {**self._settings(), "gap": self._gap, "closed": self._closed}
        for role, offered in (("anchor", self._anchor), ("prev", self._prev)):
            meta[role] = None if offered is None else offered.index
            if offered is None:
                continue
            arrays[f"{role}.numbers"] = np.array([offered.time, *offered.metrics], dtype=np.float64)
            arrays.update({f"{role}.field.{name}": np.array(field) for name, field in offered.frame.items()})
        return arrays, meta

    def restore(self, arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> None:
        """Take over what ``state`` returned.

        Raises
        ------
        ParameterError -- it was saved by a gate with other settings.
        """
        check_kind(meta, "swinging-door")
        for name, value in self._settings().items():
            if meta[name] != value:
                raise ParameterError(
                    f"the saved gate has {name}={meta[name]};", f"{value} was expected.", "Resume with equal settings."
                )
        self._doors = [_Door(float(low), float(high)) for low, high in arrays["doors"]]
        self._gap, self._closed = meta["gap"], meta["closed"]
        self._anchor, self._prev = (_Offered.load(role, meta[role], arrays) for role in ("anchor", "prev"))


@dataclass(frozen=True, slots=True)
class _Offered:
    index: int
    time: float
    metrics: tuple[float, ...]
    frame: Frame

    def kept(self) -> Kept:
        return Kept(self.index, self.time, self.frame)

    def slopes(self, later: _Offered) -> list[float]:
        span = later.time - self.time
        return [(end - start) / span for start, end in zip(self.metrics, later.metrics, strict=True)]

    @classmethod
    def load(cls, role: str, index: int | None, arrays: dict[str, NDArray[Any]]) -> _Offered | None:
        if index is None:
            return None
        time, *metrics = (float(number) for number in arrays[f"{role}.numbers"])
        start = f"{role}.field."
        frame = {key.removeprefix(start): field for key, field in arrays.items() if key.startswith(start)}
        return cls(index, time, tuple(metrics), frame)


@dataclass(slots=True)
class _Door:
    """Slopes that a line from the anchor may have."""

    low: float = -math.inf
    high: float = math.inf

    def admits(self, slope: float) -> bool:
        return self.low <= slope <= self.high

    def swing(self, slope: float, low: float, high: float) -> None:
        """Narrow the door by one frame that lies on ``slope`` and leaves room from ``low`` to ``high``."""
        if math.isfinite(low + high + slope):
            self.low, self.high = max(self.low, low), min(self.high, high)
        else:
            self.shut()

    def shut(self) -> None:
        self.low, self.high = math.inf, -math.inf


# ----------------------------------------------------------------- checks that gates share


def check_open(closed: bool) -> None:
    """Refuse a frame offered after ``close``."""
    if closed:
        raise ParameterError("a frame was offered to a closed gate;", "an open one was expected.", "Make a new gate.")


def check_time(last: tuple[int, float] | None, index: int, time: float) -> None:
    """Refuse a time that is not finite or not after that of the frame before."""
    if not math.isfinite(time):
        raise ParameterError(
            f"the time of frame {index} is {time};", "a finite number was expected.", "Give every frame a time."
        )
    if last is not None and not time > last[1]:
        raise ParameterError(
            f"frame {index} at t={time!r} follows frame {last[0]} at t={last[1]!r};",
            "increasing times were expected.",
            "Sort the frames, drop repeated ones, or resume a stream that was rewound from its earlier time.",
        )


def check_kind(meta: dict[str, Any], expected: str) -> None:
    """Refuse the saved state of another kind of gate."""
    if meta.get("gate") != expected:
        raise ParameterError(
            f"the saved gate is {meta.get('gate')!r};", f"{expected!r} was expected.", "Resume with the same gate."
        )


def _check_settings(tolerance: float, max_gap: int, c_min: float | None) -> None:
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ParameterError(f"gate tolerance {tolerance};", "a finite number >= 0 was expected.", "Try 1e-3.")
    if max_gap < 1:
        raise ParameterError(f"max_gap={max_gap};", "an integer >= 1 was expected.", "Try 64.")
    if c_min is not None and not -1 <= c_min <= 1:
        raise ParameterError(f"c_min={c_min};", "a correlation from -1 to 1 was expected.", "Try 0.9, or leave it out.")
