"""Encode a group of frames of one block within a bound, and decode it.

The encoder codes the group in several ways and keeps the smallest: frame by frame, each coded alone (``I``)
or as a difference to the decoded frame before it (``P``), whichever is smaller; or all frames together as
one block with time as an axis; or, where no lossy coding holds the bound or pays, losslessly (``L``). Every
way is decoded again with the code the reader runs and compared value by value, so the bound holds whatever
a codec claims. Prediction uses decoded frames on both sides, so errors do not accumulate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs import nonfinite
from headrace.storage.codecs.arithmetic import (
    PREDICTION_SLACK,
    PROBES,
    add_prediction,
    checksum,
    decode_patches,
    predict,
    probe,
    relative_l2,
)
from headrace.storage.codecs.encoder import GroupEncoder
from headrace.storage.codecs.layout import Chunk, Record, pack
from headrace.storage.codecs.plain import LOSSY, decode_plain
from headrace.storage.codecs.predictors import PREDICTED, Predictor
from headrace.storage.errors import ParameterError, ShapeError, StoreError

Predictors = Callable[[str], Predictor | None]


@dataclass(frozen=True)
class EncodedGroup:
    """The bytes of a chunk and what is in it."""

    payload: bytes
    records: tuple[Record, ...]
    tried: tuple[dict[str, int], ...]
    max_error: NDArray[np.float64]  # per frame, over finite values [unit of the field]
    rel_l2: NDArray[np.float64]  # per frame


def encode_group(
    frames: NDArray[Any],
    limits: Sequence[float] | NDArray[np.float64],
    *,
    measure: Literal["max", "rms"] = "max",
    codecs: Sequence[str] = LOSSY,
    stream: int = 0,
    index: tuple[int, ...] | None = None,
    times: Sequence[float] | None = None,
    predictors: Mapping[str, Predictor] | None = None,
) -> EncodedGroup:
    """Encode a group of frames so that each keeps to its limit.

    Parameters
    ----------
    frames : array, shape (n, ...), any real or complex number type or bool, native byte order
    limits : n absolute limits [unit of the field]; 0 asks for lossless coding of that frame
    measure : {"max", "rms"} -- whether the limits are on the largest or the root mean square error of a
        frame, over its finite values. Non-finite values come back bit for bit in either case.
    codecs : lossy codecs to choose from
    stream, index : identity of the array and place of the chunk in it, checked by readers
    times : of the frames, stored with them; needed for ``predictors``
    predictors : by record kind (A, S); frames may then be coded against what these make of the frame before

    Returns
    -------
    EncodedGroup

    Raises
    ------
    ShapeError -- no frame, or another number of limits than of frames
    ParameterError -- a limit that is negative or not finite
    """
    bounds = np.asarray(limits, np.float64)
    if not frames.size or bounds.shape != frames.shape[:1]:
        raise ShapeError(f"found frames of shape {frames.shape} and {bounds.size} limits, expected one limit per frame")
    if not (np.isfinite(bounds) & (bounds >= 0)).all():
        raise ParameterError(f"limits must be >= 0 and finite, got {bounds[~(bounds >= 0)][:1] or bounds}")
    block = as_real(frames)
    if np.iscomplexobj(frames):
        bounds = bounds / np.sqrt(2.0)  # on each of the two parts, so that the modulus keeps to the limit
    if predictors and (times is None or len(times) != len(frames)):
        raise ShapeError(f"found {0 if times is None else len(times)} times for {len(frames)} frames to be predicted")
    group = GroupEncoder(block, _validity(frames), bounds, measure, tuple(codecs), times or (), predictors)
    trials, tried = group.encode()
    chunk = Chunk(
        frames.dtype, frames.shape, tuple(t.record for t in trials), stream, index, tuple(times) if times else None
    )
    errors = np.concatenate([t.errors for t in trials])
    return EncodedGroup(pack(chunk), chunk.records, tried, *_per_frame(frames, errors))


def decode_group(
    chunk: Chunk, start: int = 0, stop: int | None = None, predictors: Predictors = lambda _: None
) -> NDArray[Any]:
    """Decode frames ``start`` to ``stop`` of a verified chunk.

    Parameters
    ----------
    chunk : from ``layout.unpack``
    start, stop : range of frames; all by default. Only the records needed for them are decoded.
    predictors : gives the predictor of a record kind (A, S); asked only where a record needs it

    Returns
    -------
    array, shape (stop - start, ...), dtype of the chunk

    Raises
    ------
    StoreError -- a record does not decode to what its checksum says
    """
    stop = chunk.extent[0] if stop is None else stop
    dtype, shape = _real_layout(chunk.dtype, chunk.extent)
    wanted = _needed(chunk.records, start, stop)
    out = np.empty((stop - start, *shape[1:]), dtype)
    before: NDArray[Any] | None = None
    valid: NDArray[np.bool_] | None = None
    for record, needed in zip(chunk.records, wanted, strict=True):
        if record.first >= stop:
            break
        extent = (record.count, *shape[1:])
        mask, values = nonfinite.decode_mask(record.mask, extent, dtype, valid)
        valid = mask[-1]
        if not needed:
            continue
        base = None if before is None else _base(record, chunk, before, predictors)
        numbers = _decode_numbers(record, extent, dtype, base)
        before = numbers[-1]
        _check_decoded(record, numbers)
        if values.size:
            numbers = numbers.copy()
            numbers[~mask] = values
        a, b = max(record.first, start), min(record.first + record.count, stop)
        if a < b:
            out[a - start : b - start] = numbers[a - record.first : b - record.first]
    return from_real(out, chunk.dtype)


def as_real(frames: NDArray[Any]) -> NDArray[Any]:
    """View complex frames (n, ...) as real ones (n, 2, ...); leave others as they are."""
    if not np.iscomplexobj(frames):
        return frames
    return np.stack([frames.real, frames.imag], axis=1)


def _validity(frames: NDArray[Any]) -> NDArray[np.bool_]:
    """Finite values in the layout of ``as_real``; both parts of a complex value are invalid where one is."""
    if frames.dtype.kind not in "fc":
        return np.ones(frames.shape, bool)
    finite = np.isfinite(frames)
    return np.stack([finite, finite], axis=1) if frames.dtype.kind == "c" else finite


def from_real(frames: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Undo ``as_real`` for frames that were of ``dtype``."""
    if dtype.kind != "c":
        return frames
    out = np.empty((len(frames), *frames.shape[2:]), dtype)
    out.real, out.imag = frames[:, 0], frames[:, 1]
    return out


def _decode_numbers(
    record: Record, extent: tuple[int, ...], dtype: np.dtype[Any], base: NDArray[Any] | None
) -> NDArray[Any]:
    payload = record.payload[PROBES * dtype.itemsize :] if record.kind in PREDICTED else record.payload
    numbers = add_prediction(base, decode_plain(record.codec, payload, extent, dtype))
    if record.patches:
        where, values = decode_patches(record.patches, int(np.prod(extent)), dtype)
        numbers = numbers.copy()
        numbers.reshape(-1)[where] = values
    return numbers


def _base(record: Record, chunk: Chunk, before: NDArray[Any], predictors: Predictors) -> NDArray[Any] | None:
    """What the record's payload is added to, from the decoded frame before."""
    if record.kind in "IL":
        return None
    if record.kind == "P":
        return before[None]
    predictor = predictors(record.kind)
    if predictor is None or chunk.times is None:
        raise StoreError(f"frame {record.first} is predicted (kind {record.kind}), but no stepper was given to do it")
    first, k = record.payload[: PROBES * before.itemsize], record.first
    predicted = predict(predictor, before, chunk.times[k - 1], chunk.times[k])
    expected = np.frombuffer(first, before.dtype)
    room = PREDICTION_SLACK * float(np.finfo(before.dtype).eps) * float(np.abs(predicted).max(initial=0.0))
    if expected.size != PROBES or not (np.abs(probe(predicted) - expected) <= room).all():
        raise StoreError(
            f"frame {k} is predicted otherwise here than where it was written (at four points {probe(predicted)}, "
            f"expected {expected} within {room:.1e}); use the stepper and versions that run.json names"
        )
    return predicted[None]


def _check_decoded(record: Record, numbers: NDArray[Any]) -> None:
    if record.exact and checksum(numbers) != record.decoded_crc:
        raise StoreError(
            f"frame {record.first} decodes to other values than were verified when it was written "
            f"(codec {record.codec}); compare the versions of hdf5plugin and pcodec with those in run.json"
        )


def _needed(records: Sequence[Record], start: int, stop: int) -> list[bool]:
    """Mark the records that frames start to stop depend on: a P needs the one before it."""
    needed = [record.first < stop and record.first + record.count > start for record in records]
    for k in range(len(records) - 1, 0, -1):
        if needed[k] and records[k].kind not in "IL":
            needed[k - 1] = True
    return needed


def _real_layout(dtype: np.dtype[Any], extent: tuple[int, ...]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    native = dtype.newbyteorder("=")
    if native.kind != "c":
        return native, extent
    return np.dtype(f"f{native.itemsize // 2}"), (extent[0], 2, *extent[1:])


def _per_frame(frames: NDArray[Any], errors: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Largest absolute and relative L2 error of each frame, over its finite values."""
    if frames.dtype.kind == "c":
        errors = np.hypot(errors[:, 0], errors[:, 1])
    finite = np.isfinite(frames) if frames.dtype.kind in "fc" else np.ones(frames.shape, bool)
    largest = errors.reshape(len(frames), -1).max(axis=1)
    values = [np.abs(np.where(v, u, 0)) for u, v in zip(frames, finite, strict=True)]
    return largest, np.array([relative_l2(e, u) for e, u in zip(errors, values, strict=True)])
