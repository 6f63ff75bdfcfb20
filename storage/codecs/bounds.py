"""Error bounds as a user states them, and as the encoder needs them: one absolute limit per frame."""

import math
import sys
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.storage.errors import ParameterError

Mode = Literal["abs", "rel", "l2"]


@dataclass(frozen=True)
class FrameStatistics:
    """Size of one whole frame, over its finite values: what relative bounds refer to."""

    minimum: float
    maximum: float
    rms: float

    @classmethod
    def of(cls, frame: NDArray[Any]) -> "FrameStatistics":
        """Measure one frame of any shape; zeros where it has no finite value.

        Parameters
        ----------
        frame : array of real or complex numbers; of complex ones the modulus is measured

        Returns
        -------
        FrameStatistics
        """
        values = np.abs(frame) if np.iscomplexobj(frame) else frame
        finite = values[np.isfinite(values)].astype(np.float64)
        if not finite.size:
            return cls(0.0, 0.0, 0.0)
        scale = float(np.abs(finite).max()) or 1.0  # so that the squares of huge values stay finite
        return cls(float(finite.min()), float(finite.max()), scale * float(np.sqrt(np.mean(np.square(finite / scale)))))


@dataclass(frozen=True)
class Bound:
    """An error bound for one field.

    Parameters
    ----------
    mode : {"abs", "rel", "l2"}
        ``abs``: every value is within ``value`` [unit of the field].
        ``rel``: every value is within ``value`` times the range (maximum minus minimum) of the whole frame
        it belongs to, at its own time.
        ``l2``: the root mean square error of every frame is within ``value`` times the root mean square of
        that frame; blocks of a frame each keep to the limit of the whole frame.
    value : > 0, finite

    Raises
    ------
    ParameterError -- unknown mode, or a value that is zero, negative or not finite
    """

    mode: Mode
    value: float

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ParameterError(f"bound mode {self.mode!r} is unknown; choose abs, rel or l2")
        if not (math.isfinite(self.value) and self.value > 0):
            raise ParameterError(
                f"bound must be > 0 and finite, got {self.value}; give the largest error you can accept"
            )

    def limit(self, frame: FrameStatistics) -> float:
        """Return the absolute limit for one frame [unit of the field]; 0 asks for lossless coding.

        Parameters
        ----------
        frame : statistics of the whole frame, all blocks together

        Returns
        -------
        float
        """
        if self.mode == "abs":
            return self.value
        scale = frame.maximum - frame.minimum if self.mode == "rel" else frame.rms
        limit = self.value * scale
        return limit if sys.float_info.min <= limit < math.inf else 0.0  # below, a limit has no digits left

    @property
    def measure(self) -> Literal["max", "rms"]:
        """What the limit limits: the largest or the root mean square error."""
        return "rms" if self.mode == "l2" else "max"
