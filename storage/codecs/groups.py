"""Encode a group of frames of one block within a bound, and decode it.

The encoder codes the group in several ways and keeps the smallest: frame by frame, each coded alone (``I``)
or as a difference to the decoded frame before it (``P``), whichever is smaller; or all frames together as
one block with time as an axis; or, where no lossy coding holds the bound or pays, losslessly (``L``). Every
way is decoded again with the code the reader runs and compared value by value, so the bound holds whatever
a codec claims. Prediction uses decoded frames on both sides, so errors do not accumulate.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs import nonfinite
from headrace.storage.codecs.layout import Chunk, Record, pack
from headrace.storage.codecs.plain import INEXACT, LOSSY, POINTWISE, decode_plain
from headrace.storage.codecs.search import Coded, Goal, attempt, meet
from headrace.storage.codecs.transforms import inflate
from headrace.storage.errors import ParameterError, ShapeError, StoreError

#: A record is given up when more than this share of its values needs a patch.
MAX_PATCHED = 0.01
#: Frames less correlated than this are not predicted from each other.
MIN_PEARSON = 0.5
#: Rounding that may differ between machines for each decoding step that is not exact, in units of the last
#: place of the largest value: two, where float64 transforms rounded to float32 can differ by one.
INEXACT_SLACK = 2


@dataclass(frozen=True)
class EncodedGroup:
    """The bytes of a chunk and what is in it."""

    payload: bytes
    records: tuple[Record, ...]
    tried: tuple[dict[str, int], ...]
    max_error: NDArray[np.float64]  # per frame, over finite values [unit of the field]
    rel_l2: NDArray[np.float64]  # per frame


@dataclass
class _Trial:
    """A record with the numbers it decodes to (before non-finite values are put back)."""

    record: Record
    numbers: NDArray[Any]
    tolerance: float
    errors: NDArray[np.float64] = field(repr=False)  # absolute errors of the valid values
    inexact_steps: int = 0  # decoding steps since the last exact frame whose last bits depend on the machine


def encode_group(
    frames: NDArray[Any],
    limits: Sequence[float] | NDArray[np.float64],
    *,
    measure: Literal["max", "rms"] = "max",
    codecs: Sequence[str] = LOSSY,
    stream: int = 0,
    index: tuple[int, ...] | None = None,
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
    group = _Group(block, _validity(frames), bounds, measure, tuple(codecs))
    trials, tried = group.encode()
    chunk = Chunk(frames.dtype, frames.shape, tuple(t.record for t in trials), stream, index)
    errors = np.concatenate([t.errors for t in trials])
    return EncodedGroup(pack(chunk), chunk.records, tried, *_per_frame(frames, errors))


def decode_group(chunk: Chunk, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """Decode frames ``start`` to ``stop`` of a verified chunk.

    Parameters
    ----------
    chunk : from ``layout.unpack``
    start, stop : range of frames; all by default. Only the records needed for them are decoded.

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
        numbers = _decode_numbers(record, extent, dtype, before)
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


class _Group:
    """One group while it is being encoded."""

    def __init__(
        self,
        block: NDArray[Any],
        valid: NDArray[np.bool_],
        limits: NDArray[np.float64],
        measure: Literal["max", "rms"],
        codecs: tuple[str, ...],
    ) -> None:
        self.block, self.valid, self.limits, self.measure = block, valid, limits, measure
        self.floats = block.dtype in (np.float32, np.float64)
        self.all_valid = bool(valid.all())
        self.filled = block
        if not self.all_valid:
            pairs = zip(block, self.valid, strict=True)
            self.filled = np.stack([nonfinite.fill(u, v) if not v.all() else u for u, v in pairs])
        self.codecs = codecs if self.floats else ()

    def encode(self) -> tuple[list[_Trial], tuple[dict[str, int], ...]]:
        """Return the smallest list of records, and the sizes tried for each of them."""
        chain, tried, correlation = self._chain()
        size = sum(trial.record.nbytes for trial in chain)
        options: list[list[_Trial]] = [chain]
        lossless_paid = any(trial.record.codec == "lossless" for trial in chain)
        if len(self.block) > 1:
            spans = self._spans(chain, correlation)
            if lossless_paid or size * 2 > self.block.nbytes:
                spans.append(self._lossless(0, len(self.block)))
            options += [[span] for span in spans]
        best = min(options, key=lambda trials: sum(trial.record.nbytes for trial in trials))
        together = {
            f"{o[0].record.kind}x{len(self.block)}.{o[0].record.codec}": o[0].record.nbytes for o in options[1:]
        }
        if best is not chain:
            return best, ({"frame by frame": size, **together},)
        tried[0].update(together)
        return best, tuple(tried)

    def _chain(self) -> tuple[list[_Trial], list[dict[str, int]], float]:
        """Code frame by frame; also return the correlation of the first two frames."""
        chain: list[_Trial] = []
        tried: list[dict[str, int]] = []
        coder = _FrameCoder(self)
        first_correlation = 0.0
        for k in range(len(self.block)):
            before = chain[-1] if chain else None
            correlation = pearson(self.filled[k], before.numbers[-1]) if before and self.floats else 0.0
            if k == 1:
                first_correlation = correlation
            trials = coder.code(k, before if correlation > MIN_PEARSON else None)
            best = min(trials, key=lambda trial: trial.record.nbytes)
            tried.append({f"{t.record.kind}.{t.record.codec}": t.record.nbytes for t in trials})
            chain.append(best)
        return chain, tried, first_correlation

    def _spans(self, chain: list[_Trial], correlation: float) -> list[_Trial]:
        """Code all frames as one block, where neighbours resemble each other."""
        if correlation < 0.8 or not (self.limits > 0).all():
            return []
        names = [name for name in ("sperr", "sz3", "lorenzo") if name in self.codecs]
        spans = (self._coded(name, 0, len(self.block), None) for name in names)
        return [span for span in spans if span is not None]

    def goal(self, first: int, count: int) -> Goal:
        """Return the error limits of a run of frames."""
        rows = slice(first, first + count)
        valid = None if self.all_valid else self.valid[rows]
        return Goal(self.measure, self.limits[rows], valid)

    def _coded(
        self, name: str, first: int, count: int, before: _Trial | None, warm: float | None = None
    ) -> _Trial | None:
        """Code frames with one codec, verify, patch; None where the bound cannot be held that way."""
        goal = self.goal(first, count)
        values = self.filled[first : first + count]
        base = None if before is None else before.numbers[-1:]
        steps = (name in INEXACT) + (0 if before is None else before.inexact_steps)
        magnitude = float(np.abs(values).max(initial=0))
        unit = float(np.finfo(self.block.dtype).eps) * magnitude
        strict = goal.tightened(INEXACT_SLACK * steps * unit)
        if strict is None or goal.smallest < unit:
            return None
        with np.errstate(over="ignore"):
            residual = values if base is None else (values.astype(np.float64) - base).astype(values.dtype)
        if not np.isfinite(residual).all():
            return None
        for attempt_goal in (strict, strict.tightened(2.0**-10 * strict.smallest + 2 * unit)):
            if attempt_goal is None:
                return None
            coded = meet(name, residual, attempt_goal, first=warm)
            if coded is None:
                return None
            numbers = _add(base, coded.decoded)
            difference = np.abs(self._difference(values, numbers))
            bad = ~(difference <= self._pointwise(goal, difference))
            if not bad.any() and goal.excess(difference) <= 1.0:
                break
        trial = self._patched(coded, first, numbers, difference, bad, kind="I" if base is None else "P")
        if trial is None or goal.excess(trial.errors) > 1.0:
            return None
        trial.record = replace(trial.record, exact=steps == 0)
        trial.inexact_steps = steps
        return trial

    def _difference(self, values: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.float64]:
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(np.float64) - numbers.astype(np.float64)

    def _pointwise(self, goal: Goal, difference: NDArray[np.float64]) -> NDArray[np.float64]:
        """What each value may differ by: its frame's limit, or any finite amount where the limit is on the rms."""
        limits = goal.limits if self.measure == "max" else np.full(len(goal.limits), np.finfo(np.float64).max)
        return limits.reshape(-1, *[1] * (difference.ndim - 1))

    def _patched(
        self,
        coded: Coded,
        first: int,
        numbers: NDArray[Any],
        difference: NDArray[np.float64],
        bad: NDArray[np.bool_],
        kind: str,
    ) -> _Trial | None:
        rows = slice(first, first + len(numbers))
        valid = self.valid[rows]
        bad = bad & valid
        patches = b""
        if bad.any():
            if bad.mean() > MAX_PATCHED:
                return None
            patches = _encode_patches(bad, self.block[rows])
            numbers = numbers.copy()
            numbers[bad] = self.block[rows][bad]
        if not np.isfinite(numbers).all():
            return None
        errors = np.where(bad | ~valid, 0.0, difference)
        return self._trial(kind, coded, first, numbers, errors, patches)

    def _lossless(self, first: int, count: int) -> _Trial:
        """Store frames bit for bit, as one constant where they are one."""
        values = np.ascontiguousarray(self.filled[first : first + count])
        bits = values.reshape(-1).view(np.uint8).reshape(-1, values.itemsize)
        name = "constant" if (bits == bits[0]).all() else "lossless"
        coded = attempt(name, values, 0.0)
        if coded is None or coded.decoded.tobytes() != values.tobytes():
            raise StoreError(
                f"lossless coding of shape {values.shape}, dtype {values.dtype} does not reproduce its input"
            )
        return self._trial("L", coded, first, coded.decoded, np.zeros(values.shape), b"")

    def _trial(
        self, kind: str, coded: Coded, first: int, numbers: NDArray[Any], errors: NDArray[np.float64], patches: bytes
    ) -> _Trial:
        rows = slice(first, first + len(numbers))
        before = self.valid[first - 1] if first else None
        mask = b"" if self.all_valid else nonfinite.encode_mask(self.block[rows], self.valid[rows], before)
        exact_limit = kind == "L"
        record = Record(
            kind=kind,
            codec=coded.codec,
            first=first,
            count=len(numbers),
            limit=0.0 if exact_limit else float(self.limits[rows].min()),
            max_error=float(errors.max(initial=0.0)),
            rel_l2=_ratio(errors, np.where(self.valid[rows], self.filled[rows], 0)),
            payload=coded.payload,
            patches=patches,
            mask=mask,
            rms=self.measure == "rms" and not exact_limit,
            decoded_crc=zlib.crc32(np.ascontiguousarray(numbers)),
        )
        return _Trial(record, numbers, coded.tolerance, errors)


class _FrameCoder:
    """Codes the frames of a chain in turn and learns which candidates are worth trying."""

    #: A candidate this much larger than the best is not tried again in the group.
    GIVE_UP = 1.2

    def __init__(self, group: _Group) -> None:
        self.group = group
        self.warm: dict[tuple[str, str], float] = {}
        self.alive: set[tuple[str, str]] = {(kind, name) for kind in "IP" for name in group.codecs}

    def code(self, k: int, before: _Trial | None) -> list[_Trial]:
        """Return the trials for frame ``k``; ``before`` is the decoded frame to predict from, if any."""
        group = self.group
        trials: list[_Trial] = []
        limit = float(group.limits[k])
        constant = bool((group.filled[k] == group.filled[k].flat[0]).all())
        if limit > 0 and not constant:
            trials = self._all(k, before, limit)
            if not trials:  # what was worth trying so far does not work on this frame
                self.alive |= {("I", name) for name in group.codecs}
                trials = self._all(k, None, limit)
        if constant or not trials or min(t.record.nbytes for t in trials) * 2 > group.block[k].nbytes:
            trials.append(group._lossless(k, 1))
        self._prune(trials)
        return trials

    def _all(self, k: int, before: _Trial | None, limit: float) -> list[_Trial]:
        names = sorted(self.alive, key=lambda c: (c[0], LOSSY.index(c[1])))
        tried = (self._one(kind, name, k, before, limit) for kind, name in names if kind == "I" or before is not None)
        return [trial for trial in tried if trial is not None]

    def _one(self, kind: str, name: str, k: int, before: _Trial | None, limit: float) -> _Trial | None:
        base = before if kind == "P" else None
        ratio = self.warm.get((kind, name))
        trial = self.group._coded(name, k, 1, base, None if ratio is None else ratio * limit)
        if trial is not None and trial.tolerance > 0 and not (name in POINTWISE and self.group.measure == "max"):
            self.warm[kind, name] = trial.tolerance / limit
        return trial

    def _prune(self, trials: list[_Trial]) -> None:
        sizes = {(t.record.kind, t.record.codec): t.record.nbytes for t in trials if t.record.kind != "L"}
        alone = {name: size for (kind, name), size in sizes.items() if kind == "I"}
        for name, size in alone.items():  # a codec far behind on the frame itself is not better on a difference
            if size > self.GIVE_UP * min(alone.values()):
                self.alive -= {("I", name), ("P", name)}
        for candidate, size in sizes.items():
            if size > self.GIVE_UP * min(sizes.values()):
                self.alive.discard(candidate)


def pearson(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Correlation of two frames of finite values; 0 where one of them is constant.

    Parameters
    ----------
    a, b : arrays of the same shape

    Returns
    -------
    float in [-1, 1]
    """
    scale = max(float(np.abs(a).max(initial=0)), float(np.abs(b).max(initial=0))) or 1.0
    x = a.astype(np.float64).reshape(-1) / scale
    y = b.astype(np.float64).reshape(-1) / scale
    x -= x.mean()
    y -= y.mean()
    norm = float(np.sqrt(x @ x) * np.sqrt(y @ y))
    return float(x @ y) / norm if norm > 0 else 0.0


def _decode_numbers(
    record: Record, extent: tuple[int, ...], dtype: np.dtype[Any], before: NDArray[Any] | None
) -> NDArray[Any]:
    decoded = decode_plain(record.codec, record.payload, extent, dtype)
    numbers = _add(before[None] if record.kind == "P" and before is not None else None, decoded)
    if record.patches:
        where, values = _decode_patches(record.patches, int(np.prod(extent)), dtype)
        numbers = numbers.copy()
        numbers.reshape(-1)[where] = values
    return numbers


def _check_decoded(record: Record, numbers: NDArray[Any]) -> None:
    if record.exact and zlib.crc32(np.ascontiguousarray(numbers)) != record.decoded_crc:
        raise StoreError(
            f"frame {record.first} decodes to other values than were verified when it was written "
            f"(codec {record.codec}); compare the versions of hdf5plugin and pcodec with those in run.json"
        )


def _needed(records: Sequence[Record], start: int, stop: int) -> list[bool]:
    """Mark the records that frames start to stop depend on: a P needs the one before it."""
    needed = [record.first < stop and record.first + record.count > start for record in records]
    for k in range(len(records) - 1, 0, -1):
        if needed[k] and records[k].kind == "P":
            needed[k - 1] = True
    return needed


def _real_layout(dtype: np.dtype[Any], extent: tuple[int, ...]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    native = dtype.newbyteorder("=")
    if native.kind != "c":
        return native, extent
    return np.dtype(f"f{native.itemsize // 2}"), (extent[0], 2, *extent[1:])


def _add(base: NDArray[Any] | None, decoded: NDArray[Any]) -> NDArray[Any]:
    if base is None:
        return decoded
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(base + decoded)


def _encode_patches(bad: NDArray[np.bool_], block: NDArray[Any]) -> bytes:
    where = np.flatnonzero(bad)
    gaps = np.diff(where, prepend=0).astype("<u4").tobytes()
    values = block.reshape(-1)[where].astype(block.dtype.newbyteorder("<")).tobytes()
    return len(where).to_bytes(4, "little") + zlib.compress(gaps + values, 9)


def _decode_patches(payload: bytes, size: int, dtype: np.dtype[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    count = int.from_bytes(payload[:4], "little")
    if count > size:
        raise StoreError(f"patch list declares {count} values for {size} points")
    raw = inflate(payload[4:], count * (4 + dtype.itemsize))
    where = np.cumsum(np.frombuffer(raw, "<u4", count).astype(np.int64))
    if count and where[-1] >= size:
        raise StoreError(f"patch list points at value {where[-1]} of {size}")
    return where, np.frombuffer(raw, dtype.newbyteorder("<"), count, 4 * count).astype(dtype)


def _per_frame(frames: NDArray[Any], errors: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Largest absolute and relative L2 error of each frame, over its finite values."""
    if frames.dtype.kind == "c":
        errors = np.hypot(errors[:, 0], errors[:, 1])
    finite = np.isfinite(frames) if frames.dtype.kind in "fc" else np.ones(frames.shape, bool)
    largest = errors.reshape(len(frames), -1).max(axis=1)
    values = [np.abs(np.where(v, u, 0)) for u, v in zip(frames, finite, strict=True)]
    return largest, np.array([_ratio(e, u) for e, u in zip(errors, values, strict=True)])


def _ratio(errors: NDArray[np.float64], values: NDArray[Any]) -> float:
    """||errors|| / ||values||, safe for huge values; 0 where both vanish."""
    wide = np.abs(values).astype(np.float64)
    scale = float(wide.max(initial=0.0)) or 1.0
    norm = float(np.linalg.norm((wide / scale).reshape(-1)))
    error = float(np.linalg.norm((errors / scale).reshape(-1)))
    return error / norm if norm > 0 else 0.0
