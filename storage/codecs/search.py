"""Find the coarsest setting of a codec that still meets an error target on a run of frames."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs.plain import POINTWISE, decode_plain, eligible, encode_plain
from headrace.storage.errors import StoreError

#: First tolerance tried, as a multiple of the limit: the ratio of the codec's nominal tolerance to the error
#: it makes, as met on turbulence. Only the number of trials depends on these, never the guarantee.
_FIRST = {
    "rms": {"sperr": 2.6, "sz3": 1.73, "zfp": 16.0, "lorenzo": 1.73, "spectrum": 3.7},
    "max": {"spectrum": 0.75},
}


@dataclass(frozen=True, eq=False)
class Goal:
    """Error limits for a block of frames.

    Parameters
    ----------
    measure : {"max", "rms"} -- whether the largest or the root mean square error of a frame is limited
    limits : array, shape (frames,), float64 -- one absolute limit per frame [unit of the field], > 0
    valid : boolean array of the block's shape, or None -- values that count; None for all
    """

    measure: Literal["max", "rms"]
    limits: NDArray[np.float64]
    valid: NDArray[np.bool_] | None = None

    def excess(self, difference: NDArray[np.float64]) -> float:
        """Return the largest ratio of a frame's error to its limit: at most 1 where the goal is met.

        Parameters
        ----------
        difference : array of the block's shape

        Returns
        -------
        float; inf or nan where the difference is not finite
        """
        rows = difference if self.valid is None else np.where(self.valid, difference, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = rows.reshape(len(self.limits), -1) / self.limits[:, None]
            if self.measure == "max":
                return float(np.abs(ratios).max(initial=0.0))
            counts = ratios.shape[1] if self.valid is None else self.valid.reshape(ratios.shape).sum(axis=1)
            return float(np.sqrt((np.einsum("ij,ij->i", ratios, ratios) / np.maximum(counts, 1)).max()))

    def tightened(self, slack: float) -> "Goal | None":
        """Return the goal less an absolute slack, or None where the slack eats more than a quarter of it."""
        if slack == 0:
            return self
        if slack > self.limits.min() / 4:
            return None
        return Goal(self.measure, self.limits - slack, self.valid)

    @property
    def smallest(self) -> float:
        """The tightest limit, which is the tolerance for codecs that bound each value."""
        return float(self.limits.min())


@dataclass(frozen=True, eq=False)
class Coded:
    """One block in one codec: its bytes, what they decode to, and the tolerance that made them."""

    codec: str
    payload: bytes
    decoded: NDArray[Any]
    tolerance: float


def attempt(name: str, block: NDArray[Any], tolerance: float) -> Coded | None:
    """Encode and decode a block once, or return None where the codec cannot hold it.

    Parameters
    ----------
    name : codec, one of ``plain.CODECS``
    block : array, finite
    tolerance : handed to the codec [unit of the block]

    Returns
    -------
    Coded or None
    """
    magnitude = float(np.abs(block).max(initial=0.0))
    if not eligible(name, block.shape, block.dtype, magnitude, tolerance):
        return None
    try:
        payload = encode_plain(name, block, tolerance)
        return Coded(name, payload, decode_plain(name, payload, block.shape, block.dtype), tolerance)
    except StoreError:
        return None


def meet(
    name: str,
    block: NDArray[Any],
    goal: Goal,
    *,
    first: float | None = None,
    trials: int = 8,
    within: float | None = None,
) -> Coded | None:
    """Return the block in the coarsest setting of a codec that meets the goal.

    The error of a codec grows nearly in proportion to its tolerance, so the tolerance is scaled by
    limit over error until the error lies within ``within`` below the limit or the trials are spent.

    Parameters
    ----------
    name : codec, one of ``plain.LOSSY``
    block : array, shape (frames, ...), float32 or float64, finite
    goal : error limits
    first : tolerance to try first, for instance the one found for a similar block
    trials : most encodings made
    within : relative distance below the limit that ends the search; None for 0.006, or 0.03 where the largest error
        is limited, which jumps from one tolerance to the next

    Returns
    -------
    Coded or None -- None where no trial met the goal. For a pointwise codec and a goal on the largest error
    there is one trial, and what it returns may still exceed the goal here and there.
    """
    if goal.measure == "max" and name in POINTWISE:
        return attempt(name, block, goal.smallest)
    if within is None:
        within = 0.03 if goal.measure == "max" else 0.006
    wide = block.astype(np.float64)
    tolerance = first if first is not None else goal.smallest * _FIRST[goal.measure].get(name, 1.0)
    best: Coded | None = None
    low, high, misses = 0.0, np.inf, 0  # tolerances known to meet and to miss the goal
    for _ in range(trials):
        coded = attempt(name, block, tolerance)
        if coded is None:
            break
        with np.errstate(over="ignore", invalid="ignore"):
            excess = goal.excess(wide - coded.decoded)
        if excess <= 1.0:
            best, low = coded, tolerance
            if excess >= 1.0 - within or not coded.decoded.any():
                break
        else:
            high, misses = tolerance, misses + 1
        factor = (1 - within / 2) / max(excess, 1e-3)
        if not low and misses > 1:  # the error hardly follows, as when nothing of a small residual is kept
            factor = min(factor, 0.5)
        tolerance = _next(tolerance, factor, low, high)
        if tolerance in (low, high):
            break
    return best


def meet_l2(name: str, block: NDArray[Any], rms_target: float) -> tuple[bytes, NDArray[Any], float] | None:
    """Return (payload, decoded, tolerance) with the root mean square error of one frame just below a target.

    Parameters
    ----------
    name : codec, one of ``plain.LOSSY``
    block : array, float32 or float64, finite, one frame
    rms_target : largest root mean square error allowed [unit of the block]

    Returns
    -------
    tuple or None -- None where the codec cannot meet it
    """
    coded = meet(name, block[None], Goal("rms", np.array([rms_target])), trials=14, within=0.005)
    return None if coded is None else (coded.payload, coded.decoded[0], coded.tolerance)


def _next(tolerance: float, factor: float, low: float, high: float) -> float:
    """Scale the tolerance, but never leave the bracket of what is known to meet and to miss."""
    proposed = tolerance * factor
    if low < proposed < high:
        return proposed
    if not np.isfinite(high):
        return low * 2.0
    return float(np.sqrt(max(low, high * 1e-3) * high))
