"""The encoder of one group: tries ways to code it, verifies each value by value, keeps the smallest."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs import nonfinite
from headrace.storage.codecs.arithmetic import (
    PREDICTION_SLACK,
    add_prediction,
    checksum,
    correlation,
    encode_patches,
    predict,
    probe,
    relative_l2,
    sum_of_squares,
)
from headrace.storage.codecs.layout import Record
from headrace.storage.codecs.plain import INEXACT, LOSSY, POINTWISE
from headrace.storage.codecs.predictors import PREDICTED, Predictor
from headrace.storage.codecs.search import Coded, Goal, attempt, meet
from headrace.storage.errors import StoreError

#: A record is given up when more than this share of its values needs a patch.
MAX_PATCHED = 0.01
#: Frames less correlated than this are not predicted from each other.
MIN_PEARSON = 0.5
#: Frames less correlated than this are not coded together as one block.
SPAN_PEARSON = 0.8
#: Frames of fewer values than this are only coded together: a record each would outweigh them.
SMALL_FRAME = 64
#: Rounding that may differ between machines for each decoding step that is not exact, in units of the last
#: place of the largest value: two, where float64 transforms rounded to float32 can differ by one.
INEXACT_SLACK = 2


@dataclass
class Trial:
    """A record with the numbers it decodes to (before non-finite values are put back)."""

    record: Record
    numbers: NDArray[Any]
    tolerance: float
    errors: NDArray[np.float64] = field(repr=False)  # absolute errors of the valid values
    slack: int = 0  # units in the last place by which machines may differ in ``numbers``


@dataclass(frozen=True)
class Base:
    """What a frame is coded against: the frame before it, or a prediction made of that one."""

    kind: str
    numbers: NDArray[Any]
    slack: int
    probe: bytes = b""


class GroupEncoder:
    """One group while it is being encoded."""

    def __init__(
        self,
        block: NDArray[Any],
        valid: NDArray[np.bool_],
        limits: NDArray[np.float64],
        measure: Literal["max", "rms"],
        codecs: tuple[str, ...],
        times: Sequence[float] = (),
        predictors: Mapping[str, Predictor] | None = None,
    ) -> None:
        self.block, self.valid, self.limits, self.measure = block, valid, limits, measure
        self.times, self.predictors = times, predictors or {}
        self.floats = block.dtype in (np.float32, np.float64)
        self.all_valid = bool(valid.all())
        self.filled = block
        if not self.all_valid:
            pairs = zip(block, self.valid, strict=True)
            self.filled = np.stack([nonfinite.fill(u, v) if not v.all() else u for u, v in pairs])
        self.codecs = codecs if self.floats else ()

    def encode(self) -> tuple[list[Trial], tuple[dict[str, int], ...]]:
        """Return the smallest list of records, and the sizes tried for each of them."""
        if self.block[0].size < SMALL_FRAME and len(self.block) > 1:
            return self._smallest([[span] for span in (*self._spans(), self.lossless(0, len(self.block)))], [])
        chain, tried, similarity = self._chain()
        options = [chain]
        if len(self.block) > 1:
            predicted = sum(trial.record.kind in PREDICTED for trial in chain)
            if similarity >= SPAN_PEARSON and predicted < len(chain) / 2:
                options += [[span] for span in self._spans()]
            if any(t.record.codec == "lossless" for t in chain) or _size(chain) * 2 > self.block.nbytes:
                options.append([self.lossless(0, len(self.block))])
        return self._smallest(options, tried)

    def _smallest(
        self, options: list[list[Trial]], tried: list[dict[str, int]]
    ) -> tuple[list[Trial], tuple[dict[str, int], ...]]:
        """Choose among lists of records; ``tried`` belongs to the first list, if that is one of single frames."""
        best = min(options, key=_size)
        count = len(self.block)
        together = {f"{o[0].record.kind}x{count}.{o[0].record.codec}": _size(o) for o in options[bool(tried) :]}
        if tried and best is options[0]:
            tried[0].update(together)
            return best, tuple(tried)
        return best, ({"frame by frame": _size(options[0]), **together} if tried else together,)

    def _chain(self) -> tuple[list[Trial], list[dict[str, int]], float]:
        """Code frame by frame; also return the correlation of the first two frames."""
        chain: list[Trial] = []
        tried: list[dict[str, int]] = []
        coder = FrameCoder(self)
        first_correlation = 0.0
        for k in range(len(self.block)):
            before = chain[-1] if chain else None
            similarity = correlation(self.filled[k], before.numbers[-1]) if before and self.floats else 0.0
            if k == 1:
                first_correlation = similarity
            trials = coder.code(k, before if similarity > MIN_PEARSON else None)
            best = min(trials, key=lambda trial: trial.record.nbytes)
            tried.append({f"{t.record.kind}.{t.record.codec}": t.record.nbytes for t in trials})
            chain.append(best)
        return chain, tried, first_correlation

    def _spans(self) -> list[Trial]:
        """Code all frames as one block with time as an axis."""
        if not (self.limits > 0).all():
            return []
        names = [name for name in ("sperr", "sz3", "lorenzo") if name in self.codecs]
        spans = (self.coded(name, 0, len(self.block), None) for name in names)
        return [span for span in spans if span is not None]

    def goal(self, first: int, count: int) -> Goal:
        """Return the error limits of a run of frames."""
        rows = slice(first, first + count)
        valid = None if self.all_valid else self.valid[rows]
        return Goal(self.measure, self.limits[rows], valid)

    def base(self, kind: str, k: int, before: Trial) -> Base | None:
        """Return what frame ``k`` can be coded against; None where the prediction is not finite."""
        previous = before.numbers[-1]
        if kind == "P":
            return Base("P", before.numbers[-1:], before.slack)
        predicted = predict(self.predictors[kind], previous, self.times[k - 1], self.times[k])
        if not np.isfinite(predicted).all():
            return None
        return Base(kind, predicted[None], PREDICTION_SLACK, probe(predicted).tobytes())

    def coded(self, name: str, first: int, count: int, base: Base | None, warm: float | None = None) -> Trial | None:
        """Code frames with one codec, verify, patch; None where the bound cannot be held that way.

        With the codec ``constant`` the base is taken as it is, if it is within the bound.
        """
        goal = self.goal(first, count)
        values = self.filled[first : first + count]
        slack = INEXACT_SLACK * (name in INEXACT) + (0 if base is None else base.slack)
        unit = float(np.finfo(self.block.dtype).eps) * self._scale(values)
        strict = goal.tightened(slack * unit)
        if strict is None or goal.smallest < unit:
            return None
        below = None if base is None else base.numbers
        with np.errstate(over="ignore"):
            residual = values if below is None else (values.astype(np.float64) - below).astype(values.dtype)
        if not np.isfinite(residual).all():
            return None
        tighter = strict.tightened(2.0**-10 * strict.smallest + 2 * unit)
        for attempted in (strict, tighter):
            coded = None if attempted is None else _code(name, residual, attempted, warm)
            if coded is None:
                return None
            numbers = add_prediction(below, coded.decoded)
            difference = np.abs(self._difference(values, numbers))
            bad = ~(difference <= self._pointwise(goal, difference))
            if tighter is None or attempted is tighter or (not bad.any() and goal.excess(difference) <= 1.0):
                kind = "I" if base is None else base.kind
                trial = self._patched(coded, first, numbers, difference, bad, kind=kind)
                break
        if trial is None or goal.excess(trial.errors) > 1.0:
            return None
        stored = (b"" if base is None else base.probe) + trial.record.payload
        trial.record = replace(trial.record, exact=slack == 0, payload=stored)
        trial.slack = slack
        return trial

    def _scale(self, values: NDArray[Any]) -> float:
        """Size of the values in the way of the bound: largest, or root mean square."""
        magnitude = float(np.abs(values).max(initial=0))
        if self.measure == "max" or not magnitude:
            return magnitude
        return magnitude * math.sqrt(sum_of_squares(values.astype(np.float64) / magnitude) / values.size)

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
    ) -> Trial | None:
        rows = slice(first, first + len(numbers))
        valid = self.valid[rows]
        bad = bad & valid
        patches = b""
        if bad.any():
            if bad.mean() > MAX_PATCHED:
                return None
            patches = encode_patches(bad, self.block[rows])
            numbers = numbers.copy()
            numbers[bad] = self.block[rows][bad]
        if not np.isfinite(numbers).all():
            return None
        errors = np.where(bad | ~valid, 0.0, difference)
        return self._trial(kind, coded, first, numbers, errors, patches)

    def lossless(self, first: int, count: int) -> Trial:
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
    ) -> Trial:
        rows = slice(first, first + len(numbers))
        before = self.valid[first - 1] if first else None
        mask = b"" if self.all_valid else nonfinite.encode_mask(self.block[rows], self.valid[rows], before)
        exact_limit = kind == "L"
        record = Record(
            kind=kind,
            codec=coded.codec,
            first=first,
            count=len(numbers),
            limit=0.0 if exact_limit else float(self.limits[rows].max()),
            max_error=float(errors.max(initial=0.0)),
            rel_l2=relative_l2(errors, np.where(self.valid[rows], self.filled[rows], 0)),
            payload=coded.payload,
            patches=patches,
            mask=mask,
            rms=self.measure == "rms" and not exact_limit,
            decoded_crc=checksum(numbers),
        )
        return Trial(record, numbers, coded.tolerance, errors)


class FrameCoder:
    """Codes the frames of a chain in turn and learns which candidates are worth trying."""

    #: A candidate this much larger than the best is not tried again in the group.
    GIVE_UP = 1.2

    def __init__(self, group: GroupEncoder) -> None:
        self.group = group
        self.warm: dict[tuple[str, str], float] = {}
        self.alive: set[tuple[str, str]] = {
            (kind, name) for kind in ("I", "P", *group.predictors) for name in group.codecs
        }

    def code(self, k: int, before: Trial | None) -> list[Trial]:
        """Return the trials for frame ``k``; ``before`` is the decoded frame to predict from, if any."""
        group = self.group
        trials: list[Trial] = []
        limit = float(group.limits[k])
        constant = bool((group.filled[k] == group.filled[k].flat[0]).all())
        if limit > 0 and not constant:
            trials = self._all(k, before, limit)
            if not trials:  # what was worth trying so far does not work on this frame
                self.alive |= {("I", name) for name in group.codecs}
                trials = self._all(k, None, limit)
        if constant or not trials or min(t.record.nbytes for t in trials) * 2 > group.block[k].nbytes:
            trials.append(group.lossless(k, 1))
        self._prune(trials)
        return trials

    def _all(self, k: int, before: Trial | None, limit: float) -> list[Trial]:
        kinds = {kind for kind, _ in self.alive} if before is not None else {"I"}
        bases = {kind: self.group.base(kind, k, before) for kind in kinds - {"I"}} if before is not None else {}
        for kind in sorted(kinds & set(PREDICTED), reverse=True):
            base = bases[kind]
            alone = None if base is None else self.group.coded("constant", k, 1, base)
            if alone is not None:  # the prediction itself is within the bound: nothing is smaller
                return [alone]
        names = sorted((c for c in self.alive if c[0] in kinds), key=lambda c: (c[0], LOSSY.index(c[1])))
        tried = (self._one(kind, name, k, bases.get(kind), limit) for kind, name in names)
        return [trial for trial in tried if trial is not None]

    def _one(self, kind: str, name: str, k: int, base: Base | None, limit: float) -> Trial | None:
        if base is None and kind != "I":
            return None
        ratio = self.warm.get((kind, name))
        trial = self.group.coded(name, k, 1, base, None if ratio is None else ratio * limit)
        if trial is not None and trial.tolerance > 0 and not (name in POINTWISE and self.group.measure == "max"):
            self.warm[kind, name] = trial.tolerance / limit
        return trial

    def _prune(self, trials: list[Trial]) -> None:
        sizes = {(t.record.kind, t.record.codec): t.record.nbytes for t in trials if t.record.kind != "L"}
        alone = {name: size for (kind, name), size in sizes.items() if kind == "I"}
        for name, size in alone.items():  # a codec far behind on the frame itself is not better on a difference
            if size > self.GIVE_UP * min(alone.values()):
                self.alive = {candidate for candidate in self.alive if candidate[1] != name}
        for candidate, size in sizes.items():
            if size > self.GIVE_UP * min(sizes.values()):
                self.alive.discard(candidate)


def _code(name: str, residual: NDArray[Any], goal: Goal, warm: float | None) -> Coded | None:
    """Code a residual; as ``constant`` it is left out."""
    if name != "constant":
        return meet(name, residual, goal, first=warm)
    nothing = np.zeros_like(residual)
    return Coded(name, nothing.reshape(-1)[:1].tobytes(), nothing, 0.0) if _within(residual, goal) else None


def _within(residual: NDArray[Any], goal: Goal) -> bool:
    return goal.excess(residual.astype(np.float64)) <= 1.0


def _size(trials: list[Trial]) -> int:
    return sum(trial.record.nbytes for trial in trials)
