"""Non-finite values: taken out before coding, kept bit for bit, put back after decoding."""

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs.transforms import inflate
from headrace.storage.errors import StoreError


def fill(frame: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[Any]:
    """Replace invalid values by a smooth continuation of the valid ones, which codecs store cheaply.

    Averages of the valid values are taken over ever larger cells (2, 4, 8 ... points wide) until every cell
    has one, and each invalid value takes that of its smallest filled cell.

    Parameters
    ----------
    frame : array, float, any number of axes
    valid : boolean array of that shape

    Returns
    -------
    array like ``frame``, finite; all zeros where nothing is valid
    """
    if not valid.any():
        return np.zeros_like(frame)
    scale = float(np.abs(frame[valid].astype(np.float64)).max()) or 1.0
    sums = np.where(valid, frame, 0).astype(np.float64) / scale
    means = _spread(sums, valid.astype(np.float64)) * scale
    return np.where(valid, frame, means.astype(frame.dtype))


def _spread(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        means = sums / counts
    if counts.all() or max(sums.shape, default=1) == 1:
        return means
    coarse = _spread(_halve(sums), _halve(counts))
    for axis, size in enumerate(sums.shape):
        coarse = np.repeat(coarse, 2, axis=axis).take(range(size), axis=axis)
    return np.where(counts > 0, means, coarse)


def _halve(values: NDArray[np.float64]) -> NDArray[np.float64]:
    for axis, size in enumerate(values.shape):
        values = np.add.reduceat(values, np.arange(0, size, 2), axis=axis)
    return values


def encode_mask(block: NDArray[Any], valid: NDArray[np.bool_], before: NDArray[np.bool_] | None) -> bytes:
    """Store where and what the invalid values are.

    Parameters
    ----------
    block : array, shape (frames, ...), with its non-finite values
    valid : boolean array of that shape
    before : ``valid`` of the frame before the first, or None; a mask that stays the same costs a few bytes

    Returns
    -------
    bytes, empty where everything is valid and was before
    """
    changes = _changes(valid, before)
    if valid.all() and not changes.any():
        return b""
    edges = np.flatnonzero(np.diff(changes.reshape(-1), prepend=False))
    runs = np.diff(edges, prepend=0).astype("<u4")
    bits = block[~valid].view(f"u{block.dtype.itemsize}")
    same = bits.size > 0 and bool((bits == bits[0]).all())
    stored = bits[:1] if same else bits
    packed = zlib.compress(runs.tobytes(), 9)
    values = stored.astype(stored.dtype.newbyteorder("<")).tobytes()
    return struct.pack("<III", len(runs), stored.size, len(packed)) + packed + zlib.compress(values, 9)


def decode_mask(
    payload: bytes, shape: tuple[int, ...], dtype: np.dtype[Any], before: NDArray[np.bool_] | None
) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Undo ``encode_mask``.

    Parameters
    ----------
    payload : bytes from ``encode_mask``
    shape, dtype : of the block
    before : ``valid`` of the frame before the first, or None

    Returns
    -------
    valid : boolean array of that shape
    values : array of ``dtype`` -- the invalid values in the block's order, or a single one that all share

    Raises
    ------
    StoreError -- the bytes contradict the shape
    """
    size = int(np.prod(shape))
    if not payload:
        return np.ones(shape, bool), np.zeros(0, dtype)
    if len(payload) < 12:
        raise StoreError(f"mask of {len(payload)} bytes is shorter than its header of 12")
    n_runs, n_values, n_packed = struct.unpack_from("<III", payload)
    if n_runs > size or n_values > size:
        raise StoreError(f"mask declares {n_runs} runs and {n_values} values for {size} points")
    runs = np.frombuffer(inflate(payload[12 : 12 + n_packed], 4 * n_runs), "<u4").astype(np.int64)
    edges = np.cumsum(runs)
    if n_runs and edges[-1] >= size:
        raise StoreError(f"mask runs end at {edges[-1]}, the block has {size} points")
    flips = np.zeros(size, np.int8)
    flips[edges] = 1
    changes = np.logical_xor.accumulate(flips.astype(bool)).reshape(shape)
    valid = ~np.logical_xor.accumulate(_with_first(changes, before), axis=0)
    bits = inflate(payload[12 + n_packed :], n_values * dtype.itemsize)
    values = np.frombuffer(bits, dtype.newbyteorder("<")).astype(dtype)
    if values.size not in (0, 1, int((~valid).sum())) or (not values.size and not valid.all()):
        raise StoreError(f"mask holds {values.size} values for {int((~valid).sum())} invalid points")
    return valid, values


def _changes(valid: NDArray[np.bool_], before: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    """True where a frame's mask differs from that of the frame before it."""
    first = np.ones(valid.shape[1:], bool) if before is None else before
    return np.asarray(valid != np.concatenate([first[None], valid[:-1]]))


def _with_first(changes: NDArray[np.bool_], before: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    """Changes against 'all valid', so that accumulating them gives the masks."""
    if before is None:
        return changes
    return np.concatenate([(changes[0] ^ ~before)[None], changes[1:]])
