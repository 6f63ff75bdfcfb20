"""Arithmetic on frames that writing and reading share, so that both do it the same way."""

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs.predictors import Predictor
from headrace.storage.codecs.transforms import inflate
from headrace.storage.errors import ShapeError, StoreError

#: Units in the last place by which a prediction may differ where it is computed again, as measured between backends.
PREDICTION_SLACK = 64
#: Values of a prediction stored beside the record, so that a reader whose stepper is another one is found out.
PROBES = 4


def correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Correlation of two frames of finite values; 0 where one of them is constant.

    Parameters
    ----------
    a, b : arrays of the same shape

    Returns
    -------
    float in [-1, 1]
    """
    x, y = _centred(a), _centred(b)
    norm = math.sqrt(sum_of_squares(x) * sum_of_squares(y))
    return min(1.0, max(-1.0, float(np.multiply(x, y).sum()) / norm)) if norm > 0 else 0.0


def _centred(values: NDArray[Any]) -> NDArray[np.float64]:
    """Deviations from the mean, scaled to at most 1 so that their products neither overflow nor vanish."""
    wide = values.astype(np.float64).reshape(-1)
    wide /= float(np.abs(wide).max(initial=0.0)) or 1.0
    wide -= wide.mean()
    wide /= float(np.abs(wide).max(initial=0.0)) or 1.0
    return wide


def predict(predictor: Predictor, previous: NDArray[Any], t_previous: float, t: float) -> NDArray[Any]:
    """Run a predictor on a frame, the same way when writing and reading; what it does to numbers stays quiet."""
    with np.errstate(all="ignore"):
        predicted = np.asarray(predictor.advance(previous, t_previous, t))
    if predicted.shape != previous.shape:
        raise ShapeError(f"a stepper made a frame of shape {predicted.shape} of one of {previous.shape}")
    return predicted.astype(previous.dtype, copy=False)


def probe(predicted: NDArray[Any]) -> NDArray[Any]:
    """Values of a prediction at fixed places spread over the frame."""
    flat = predicted.reshape(-1)
    return flat[np.linspace(0, flat.size - 1, PROBES).astype(np.int64)]


def add_prediction(base: NDArray[Any] | None, decoded: NDArray[Any]) -> NDArray[Any]:
    """Add a decoded difference to the frame it was predicted from, the same way when writing and reading."""
    if base is None:
        return decoded
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(base + decoded)


def checksum(numbers: NDArray[Any]) -> int:
    """CRC-32 of decoded values, in C order and native bytes."""
    return zlib.crc32(np.ascontiguousarray(numbers).tobytes())


def encode_patches(bad: NDArray[np.bool_], block: NDArray[Any]) -> bytes:
    """Store the true values at the places marked: their number, and zlib of gaps (u4) and values."""
    where = np.flatnonzero(bad)
    gaps = np.diff(where, prepend=0).astype("<u4").tobytes()
    values = block.reshape(-1)[where].astype(block.dtype.newbyteorder("<")).tobytes()
    return len(where).to_bytes(4, "little") + zlib.compress(gaps + values, 9)


def decode_patches(payload: bytes, size: int, dtype: np.dtype[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Undo ``encode_patches``: flat positions in a block of ``size`` values, and the values.

    Raises
    ------
    StoreError -- the bytes contradict the size
    """
    count = int.from_bytes(payload[:4], "little")
    if count > size:
        raise StoreError(f"patch list declares {count} values for {size} points")
    raw = inflate(payload[4:], count * (4 + dtype.itemsize))
    where = np.cumsum(np.frombuffer(raw, "<u4", count).astype(np.int64))
    if count and where[-1] >= size:
        raise StoreError(f"patch list points at value {where[-1]} of {size}")
    return where, np.frombuffer(raw, dtype.newbyteorder("<"), count, 4 * count).astype(dtype)


def relative_l2(errors: NDArray[np.float64], values: NDArray[Any]) -> float:
    """||errors|| / ||values||, safe for huge values; 0 where both vanish."""
    wide = np.abs(values).astype(np.float64)
    scale = float(wide.max(initial=0.0)) or 1.0
    norm = sum_of_squares(wide / scale)
    return math.sqrt(sum_of_squares(errors / scale) / norm) if norm > 0 else 0.0


def sum_of_squares(values: NDArray[np.float64]) -> float:
    """Sum squares without BLAS, whose threads cost more than they bring here, in an order that varies."""
    return float(np.square(values).sum())
