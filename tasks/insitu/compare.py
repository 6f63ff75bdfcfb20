"""The same frames through plain codecs at the same bound: what a reader of the report compares a run with.

A plain codec is used the way its documentation says, one call per frame with the bound as its tolerance, and nothing
verifies it; so whether it held the bound is part of the result. For a bound on the relative L2 error, which these
codecs do not take, the largest tolerance that meets it is searched for, and only the final call is timed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs.bounds import Bound, FrameStatistics
from headrace.storage.codecs.groups import as_real
from headrace.storage.codecs.nonfinite import fill
from headrace.storage.codecs.plain import decode_plain, eligible, encode_plain
from headrace.storage.codecs.search import Goal, meet
from headrace.storage.errors import StoreError

PEERS = ("sperr", "sz3", "zfp")
LEVELS = tuple(10.0 ** (-k / 2) for k in range(1, 10))  # tolerances of the sweep, relative to the root mean square
MOST_VALUES = 2**20  # of a frame given to plain codecs; of a larger one a tile from the middle is taken


@dataclass(frozen=True)
class PlainResult:
    """What one plain codec made of the frames.

    ``max_error`` is absolute [field units], ``rel_l2`` the relative L2 error over all frames, ``excess`` the largest
    ratio of a frame's error to its limit, ``seconds`` the encoding time per frame. ``note`` says why a codec could not
    be used; all numbers are zero then.
    """

    codec: str
    raw_bytes: int = 0
    nbytes: int = 0
    values: int = 0
    max_error: float = 0.0
    rel_l2: float = 0.0
    excess: float = 0.0
    seconds: float = 0.0
    note: str = ""

    @property
    def ratio(self) -> float:
        """Raw bytes over compressed bytes."""
        return self.raw_bytes / self.nbytes if self.nbytes else 0.0

    @property
    def bits_per_value(self) -> float:
        """Compressed bits per value."""
        return 8 * self.nbytes / self.values if self.values else 0.0

    @property
    def held(self) -> bool:
        """Whether every frame kept to the bound."""
        return self.excess <= 1.0


@dataclass(frozen=True)
class RatePoint:
    """One setting of one codec: its size and its error."""

    codec: str
    bits_per_value: float
    rel_l2: float


@dataclass(frozen=True)
class _Subject:
    """A frame as a codec may see it: real, finite, of bearable size."""

    values: NDArray[Any]
    valid: NDArray[np.bool_]
    limit: float
    raw_bytes: int

    @classmethod
    def of(cls, frame: NDArray[Any], bound: Bound | None = None) -> _Subject:
        limit = bound.limit(FrameStatistics.of(frame)) if bound else 0.0
        part = tile(frame)
        real = as_real(part[None])[0]
        if np.iscomplexobj(frame) and bound and bound.measure == "max":
            limit /= np.sqrt(2.0)  # on each of the two parts
        valid = np.isfinite(real)
        return cls(real if valid.all() else fill(real, valid), valid, limit, part.nbytes)

    def error(self, decoded: NDArray[Any]) -> NDArray[np.float64]:
        difference: NDArray[np.float64] = decoded.astype(np.float64)[self.valid] - self.values[self.valid]
        return difference

    def norm(self) -> float:
        return float(np.linalg.norm(self.values[self.valid].astype(np.float64)))


def tile(frame: NDArray[Any], most: int = MOST_VALUES) -> NDArray[Any]:
    """The whole frame, or a part from its middle with at most ``most`` values, longest axes halved first.

    Parameters
    ----------
    frame : array of any shape
    most : largest number of values, >= 1

    Returns
    -------
    array, C-contiguous
    """
    shape = list(frame.shape)
    while np.prod(shape) > most:
        longest = int(np.argmax(shape))
        shape[longest] = (shape[longest] + 1) // 2
    middle = tuple(slice((n - m) // 2, (n - m) // 2 + m) for n, m in zip(frame.shape, shape, strict=True))
    return np.asarray(frame[middle], order="C")


def compare_plain(frames: Sequence[NDArray[Any]], bound: Bound, codecs: Sequence[str] = PEERS) -> list[PlainResult]:
    """Put frames through plain codecs at a bound.

    Parameters
    ----------
    frames : arrays, one per frame, at least one. Non-finite values are filled in before and not counted after.
    bound : of each frame, as the run had it
    codecs : names of lossy codecs (``headrace.storage.codecs.plain``)

    Returns
    -------
    list of PlainResult, one per codec
    """
    subjects = [_Subject.of(frame, bound) for frame in frames]
    return [_through(codec, subjects, bound) for codec in codecs]


def rate_distortion(
    frames: Sequence[NDArray[Any]], codecs: Sequence[str] = PEERS, levels: Sequence[float] = LEVELS
) -> list[RatePoint]:
    """Size and error of plain codecs over a range of tolerances.

    Parameters
    ----------
    frames : arrays, one per frame
    codecs : names of lossy codecs
    levels : tolerances relative to the root mean square of each frame

    Returns
    -------
    list of RatePoint, in order of codec and level; settings a codec cannot be used at are left out
    """
    subjects = [_Subject.of(frame) for frame in frames]
    points = []
    for codec in codecs:
        for level in levels:
            point = _at_level(codec, subjects, level)
            if point is not None:
                points.append(point)
    return points


def _through(codec: str, subjects: Sequence[_Subject], bound: Bound) -> PlainResult:
    nbytes, seconds, squares, norms, largest, excess = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    factor: float | None = None  # tolerance over limit that met the frame before
    for subject in subjects:
        if subject.limit <= 0:
            return PlainResult(codec, note="has no lossless mode, which a frame of equal values needs at this bound")
        tolerance = subject.limit if bound.measure == "max" else _tolerance(codec, subject, factor)
        coded = None if tolerance is None else _call(codec, subject.values, tolerance)
        if tolerance is None or coded is None:
            shape, dtype = subject.values.shape, subject.values.dtype
            return PlainResult(codec, note=f"cannot be used on {dtype} frames of shape {shape} at this bound")
        factor = tolerance / subject.limit
        payload, decoded, spent = coded
        error = subject.error(decoded)
        worst = float(np.abs(error).max(initial=0.0))
        measured = worst if bound.measure == "max" else float(np.sqrt(np.mean(error**2))) if error.size else 0.0
        nbytes, seconds = nbytes + len(payload), seconds + spent
        squares, norms = squares + float(error @ error), norms + subject.norm() ** 2
        largest, excess = max(largest, worst), max(excess, measured / subject.limit)
    raw = sum(subject.raw_bytes for subject in subjects)
    values = sum(subject.values.size for subject in subjects)
    rel_l2 = float(np.sqrt(squares / norms)) if norms > 0 else 0.0
    return PlainResult(codec, raw, nbytes, values, largest, rel_l2, excess, seconds / len(subjects))


def _tolerance(codec: str, subject: _Subject, factor: float | None) -> float | None:
    """Largest tolerance that meets a limit on the root mean square error, searched from that of the frame before."""
    first = None if factor is None else factor * subject.limit
    found = meet(codec, subject.values[None], Goal("rms", np.array([subject.limit])), first=first)
    return None if found is None else found.tolerance


def _call(codec: str, values: NDArray[Any], tolerance: float) -> tuple[bytes, NDArray[Any], float] | None:
    magnitude = float(np.abs(values).max(initial=0.0))
    if not eligible(codec, values.shape, values.dtype, magnitude, tolerance):
        return None
    begin = time.perf_counter()
    try:
        payload = encode_plain(codec, values, tolerance)
        seconds = time.perf_counter() - begin
        return payload, decode_plain(codec, payload, values.shape, values.dtype), seconds
    except StoreError:
        return None


def _at_level(codec: str, subjects: Sequence[_Subject], level: float) -> RatePoint | None:
    nbytes, squares, norms = 0, 0.0, 0.0
    for subject in subjects:
        norm = subject.norm()
        coded = _call(codec, subject.values, level * norm / max(subject.valid.sum(), 1) ** 0.5)
        if coded is None:
            return None
        error = subject.error(coded[1])
        nbytes, squares, norms = nbytes + len(coded[0]), squares + float(error @ error), norms + norm**2
    values = sum(subject.values.size for subject in subjects)
    return RatePoint(codec, 8 * nbytes / values, float(np.sqrt(squares / norms)))
