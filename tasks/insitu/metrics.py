"""Scalars that describe a frame: cheap reductions that a gate watches while frames stream past.

All are computed in float64 over the finite values of the field; a field without any gives NaN. Complex fields count by
their modulus.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs.arithmetic import correlation
from headrace.storage.errors import ShapeError

Field = NDArray[Any]


def enstrophy(field: Field) -> float:
    """Mean square; of a vorticity field this is twice the enstrophy density, of a velocity twice the energy density."""
    values = _finite(field)
    if not values.size:
        return float("nan")
    with np.errstate(over="ignore"):
        return float(np.mean(np.square(values)))


def mean(field: Field) -> float:
    """Arithmetic mean [field units]."""
    values = _finite(field)
    return float(np.mean(values)) if values.size else float("nan")


def rms(field: Field) -> float:
    """Root of the mean square [field units]; scaled by the largest value, so that squares cannot overflow."""
    values = _finite(field)
    if not values.size:
        return float("nan")
    largest = float(np.max(np.abs(values)))
    return largest * float(np.sqrt(np.mean(np.square(values / largest)))) if largest > 0 else 0.0


def max_abs(field: Field) -> float:
    """Largest absolute value [field units]."""
    values = _finite(field)
    return float(np.max(np.abs(values))) if values.size else float("nan")


def roughness(field: Field) -> float:
    """Root mean square difference of neighbouring points along all axes [field units per grid step].

    Unlike ``max_abs`` it does not flicker while a wave moves across the grid points.
    """
    values = np.abs(field) if np.iscomplexobj(field) else np.asarray(field)
    values = values.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = [np.diff(values, axis=axis).ravel() for axis in range(values.ndim)]
    return rms(np.concatenate(steps)) if steps else float("nan")


METRICS: dict[str, Callable[[Field], float]] = {
    "enstrophy": enstrophy,
    "max_abs": max_abs,
    "mean": mean,
    "rms": rms,
    "roughness": roughness,
}


def pearson(a: Field, b: Field) -> float:
    """Correlation coefficient of two fields over the points where both are finite.

    Parameters
    ----------
    a, b : arrays of equal shape, any numeric dtype; complex ones count as two real channels

    Returns
    -------
    float in [-1, 1]. Two constant fields give 1 when they are equal and 0 when not; one constant field gives 0. Two
    fields with no finite value at all give 1, two with none in common 0.

    Raises
    ------
    ShapeError -- the shapes differ.
    """
    if a.shape != b.shape:
        raise ShapeError(
            f"fields of shape {a.shape} and {b.shape} cannot be correlated;",
            "equal shapes were expected.",
            "A change of the grid starts a new stream.",
        )
    x, y = _channels(a), _channels(b)
    finite_x, finite_y = np.isfinite(x), np.isfinite(y)
    common = finite_x & finite_y
    if not common.all():
        if not common.any():
            return 0.0 if finite_x.any() or finite_y.any() else 1.0
        x, y = x[common], y[common]
    if not x.size:
        return 1.0
    if x.min() == x.max() or y.min() == y.max():
        return float(bool(np.array_equal(x, y)))
    return correlation(x, y)


def _finite(field: Field) -> NDArray[np.float64]:
    array = np.abs(field) if np.iscomplexobj(field) else np.asarray(field)
    values = array.astype(np.float64).ravel()
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def _channels(field: Field) -> NDArray[np.float64]:
    if np.iscomplexobj(field):
        return np.concatenate([_channels(field.real), _channels(field.imag)])
    return np.asarray(field).astype(np.float64).ravel()
