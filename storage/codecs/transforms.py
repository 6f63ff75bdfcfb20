"""Codecs written here: quantised spectrum, quantise + Lorenzo + pcodec, and lossless coding.

All integers end in pcodec (Loncaric et al., arXiv:2502.06112).
Decoding allocates what the declared shape needs and no more.
"""

import struct
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.errors import StoreError

_PCO, _ZLIB = 0, 1
_PCO_TYPES = {np.dtype(t) for t in ("f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8")}


def encode_lossless(block: NDArray[Any]) -> bytes:
    """Compress any array of numbers or booleans so that every bit comes back.

    Parameters
    ----------
    block : array of a fixed-size dtype, any shape

    Returns
    -------
    bytes -- pcodec for 16- to 64-bit numbers, zlib for the rest
    """
    flat = np.ascontiguousarray(block).reshape(-1)
    if flat.dtype in _PCO_TYPES and flat.size:
        return bytes([_PCO]) + _pco_encode(flat)
    return bytes([_ZLIB]) + zlib.compress(flat.tobytes(), 6)


def decode_lossless(payload: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Undo ``encode_lossless``.

    Parameters
    ----------
    payload : bytes from ``encode_lossless``
    shape, dtype : of the block that was encoded

    Returns
    -------
    array of that shape and dtype

    Raises
    ------
    StoreError -- the bytes do not decode to that many values
    """
    size = int(np.prod(shape))
    if payload[:1] == bytes([_PCO]):
        return _pco_decode(payload[1:], size, dtype).reshape(shape)
    raw = inflate(payload[1:], size * dtype.itemsize)
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def encode_lorenzo(block: NDArray[np.floating[Any]], tolerance: float) -> bytes:
    """Round to multiples of twice the tolerance, take Lorenzo differences, compress the integers.

    Lorenzo prediction of order one (Ibarria et al. 2003): the difference along each axis in turn.

    Parameters
    ----------
    block : array, float32 or float64, finite
    tolerance : half the width of a step [unit of the block]

    Returns
    -------
    bytes

    Raises
    ------
    StoreError -- a quantised value leaves 31 bits; use another codec
    """
    with np.errstate(over="ignore"):
        steps = np.rint(block.astype(np.float64) / (2.0 * tolerance))
    if not np.all(np.abs(steps) < 2**30):
        raise StoreError(f"lorenzo: values up to {np.abs(block).max()} at tolerance {tolerance} need more than 31 bits")
    differences = steps.astype(np.int64)
    for axis in range(block.ndim):
        differences = np.diff(differences, axis=axis, prepend=0)
    small = np.abs(differences).max(initial=0) < 2**31
    width = np.int32 if small else np.int64
    return struct.pack("<dB", tolerance, width().itemsize) + _pco_encode(differences.astype(width).reshape(-1))


def decode_lorenzo(payload: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Undo ``encode_lorenzo``.

    Parameters
    ----------
    payload : bytes from ``encode_lorenzo``
    shape, dtype : of the block that was encoded

    Returns
    -------
    array of that shape and dtype, within the tolerance up to the rounding of ``dtype``

    Raises
    ------
    StoreError -- the bytes do not decode to that many values
    """
    tolerance, width = _unpack("<dB", payload)
    integers = np.dtype(np.int32 if width == 4 else np.int64)
    steps = _pco_decode(payload[9:], int(np.prod(shape)), integers).astype(np.int64).reshape(shape)
    for axis in range(len(shape)):
        steps = np.cumsum(steps, axis=axis)
    with np.errstate(over="ignore", invalid="ignore"):
        return (steps * (2.0 * tolerance)).astype(dtype)


def encode_spectrum(block: NDArray[np.floating[Any]], step: float) -> bytes:
    """Quantise the orthonormal real Fourier transform, lowest wavenumbers first, trailing zeros cut.

    Meant for smooth fields on periodic boxes. The error is spread over all values: with every coefficient
    active its mean square is about ``step**2 / 12`` per stored real number, and its maximum four to five
    times the root of that, so the step is not a pointwise bound.

    Parameters
    ----------
    block : array, float32 or float64, finite, 1 to 4 axes
    step : width of a quantisation step of a real or imaginary part [unit of the block]

    Returns
    -------
    bytes

    Raises
    ------
    StoreError -- a quantised coefficient leaves 31 bits; use another codec
    """
    with np.errstate(over="ignore", invalid="ignore"):
        spectrum = np.fft.rfftn(block.astype(np.float64), norm="ortho").reshape(-1)[_order(block.shape)]
        steps = np.rint(np.stack([spectrum.real, spectrum.imag]) / step)
    if not np.all(np.abs(steps) < 2**30):
        raise StoreError(f"spectrum: coefficients up to {np.abs(spectrum).max()} at step {step} need more than 31 bits")
    nonzero = np.flatnonzero(steps.any(axis=0))
    kept = int(nonzero[-1]) + 1 if nonzero.size else 0
    integers = np.ascontiguousarray(steps[:, :kept].T).astype(np.int32).reshape(-1)
    return struct.pack("<dI", step, kept) + _pco_encode_segments(integers)


def decode_spectrum(payload: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Undo ``encode_spectrum``.

    Parameters
    ----------
    payload : bytes from ``encode_spectrum``
    shape, dtype : of the block that was encoded

    Returns
    -------
    array of that shape and dtype; its last bits depend on the FFT library

    Raises
    ------
    StoreError -- the bytes do not decode to that many coefficients
    """
    step, kept = _unpack("<dI", payload)
    order = _order(shape)
    if kept > order.size:
        raise StoreError(f"spectrum: {kept} coefficients declared, shape {shape} has {order.size}")
    integers = _pco_decode_segments(payload[12:], 2 * kept).reshape(kept, 2)
    spectrum = np.zeros(order.size, np.complex128)
    spectrum[order[:kept]] = (integers[:, 0] + 1j * integers[:, 1]) * step
    half = (*shape[:-1], shape[-1] // 2 + 1)
    axes = tuple(range(len(shape)))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.fft.irfftn(spectrum.reshape(half), s=shape, axes=axes, norm="ortho").astype(dtype)


def inflate(payload: bytes, size: int) -> bytes:
    """Decompress zlib bytes to exactly ``size`` bytes, never allocating more.

    Parameters
    ----------
    payload : zlib stream
    size : number of bytes expected

    Returns
    -------
    bytes of that length

    Raises
    ------
    StoreError -- the stream is damaged or holds another number of bytes
    """
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(payload, size + 1)
    except zlib.error as err:
        raise StoreError(f"zlib stream of {len(payload)} bytes is damaged: {err}") from err
    if len(raw) != size or not stream.eof:
        raise StoreError(f"zlib stream of {len(payload)} bytes does not hold the {size} bytes declared")
    return raw


@lru_cache(maxsize=8)
def _order(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Flat indices of the half spectrum by growing wavenumber (stable, so the same everywhere)."""
    axes = [np.fft.fftfreq(n, 1 / n) for n in shape[:-1]] + [np.fft.rfftfreq(shape[-1], 1 / shape[-1])]
    k2 = sum(np.ix_(*[np.rint(k) ** 2 for k in axes]), start=np.zeros(()))
    return np.argsort(k2.reshape(-1), kind="stable")


def _pco_encode_segments(integers: NDArray[np.int32]) -> bytes:
    """Compress in up to eight equal segments, each with a histogram of its own.

    The spread of the values falls along the array; on turbulence this is 15 to 30 % smaller than one stream.
    """
    count = min(8, max(1, integers.size // 1024))
    streams = [_pco_encode(part) for part in np.array_split(integers, count)] if integers.size else []
    return struct.pack(f"<B{len(streams)}I", len(streams), *map(len, streams)) + b"".join(streams)


def _pco_decode_segments(payload: bytes, size: int) -> NDArray[np.int32]:
    (count,) = _unpack("<B", payload)
    lengths = _unpack(f"<x{count}I", payload)
    sizes = [len(part) for part in np.array_split(np.empty(size, np.int8), max(1, count))]
    if count == 0 and size:
        raise StoreError(f"spectrum: no stream where {size} integers are declared")
    parts, start = [np.zeros(0, np.int32)], 1 + 4 * count
    for length, expected in zip(lengths, sizes, strict=False):
        parts.append(_pco_decode(payload[start : start + length], expected, np.dtype(np.int32)))
        start += length
    return np.concatenate(parts)


def _unpack(layout: str, payload: bytes) -> tuple[Any, ...]:
    if len(payload) < struct.calcsize(layout):
        raise StoreError(f"payload of {len(payload)} bytes is shorter than its header of {struct.calcsize(layout)}")
    return struct.unpack_from(layout, payload)


def _pco_encode(flat: NDArray[Any]) -> bytes:
    from pcodec import ChunkConfig, standalone

    return bytes(standalone.simple_compress(flat, ChunkConfig(compression_level=8)))


def _pco_decode(payload: bytes, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    from pcodec import standalone

    out = np.empty(size, dtype)
    try:
        progress = standalone.simple_decompress_into(payload, out)
    except (RuntimeError, TypeError) as err:
        raise StoreError(f"pcodec stream of {len(payload)} bytes is damaged: {err}") from err
    if progress.n_processed != size or not progress.finished:
        raise StoreError(f"pcodec stream holds {progress.n_processed} of the {size} values declared")
    return out
