"""Pictures of a run and the same frames through plain codecs, for its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.storage.codecs.bounds import Bound
from headrace.tasks.insitu.compare import MOST_VALUES, RatePoint, compare_plain, rate_distortion
from headrace.tasks.insitu.drawing import Axis, with_unit
from headrace.tasks.insitu.figures import MetricCurve, metric_figure, rate_figure
from headrace.tasks.insitu.measure import FinishedRun, Sample
from headrace.tasks.insitu.pictures import FieldPair, field_figure, shown_part

MOST_COMPARED = 2**21  # values given to each plain codec, at least one frame
MOST_SWEPT = 2**18  # values swept through all tolerances, at least one frame


class TableData(NamedTuple):
    """Title, column heads, rows and a note below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


class FigureData(NamedTuple):
    """Title, PNG and caption."""

    title: str
    png: bytes
    caption: str = ""


def describe_bound(bound: Bound) -> str:
    """The bound in words."""
    words = {"abs": "each value, absolute", "rel": "each value, of the frame's range", "l2": "relative L2 of a frame"}
    return f"{bound.value:g} ({words[bound.mode]})"


def curve_figure(curve: MetricCurve) -> FigureData:
    """The metric curve with the frames kept."""
    count, kept = len(curve.kept), int(curve.kept.sum())
    caption = f"{kept} of {count} frames are kept."
    if kept < count:
        caption += (
            " Below: how far straight lines between them are from the metric, beside as many frames at equal distances."
        )
    name = curve.name.replace("_", " ")
    return FigureData(f"{name[:1].upper()}{name[1:]} of every frame offered", metric_figure(curve), caption)


def illustrate(found: FinishedRun, name: str, samples: Sequence[Sample]) -> tuple[list[FigureData], list[TableData]]:
    """A variable before and after, its frames through plain codecs as a table, and error against size.

    Parameters
    ----------
    found : the run
    name : of the variable
    samples : its sample frames; without any there is nothing to show

    Returns
    -------
    figures and tables
    """
    samples = [sample for sample in samples if sample.original.size]
    if not samples:
        return [], []
    label = str(found.dataset[name].attrs.get("long_name", name))
    figures = []
    if samples[0].original.ndim:
        figures.append(_picture(found, name, label, max(samples, key=lambda s: s.error.excess)))
    size = min(samples[0].original.size, MOST_VALUES)
    compared, swept = _evenly(samples, MOST_COMPARED // size), _evenly(samples, MOST_SWEPT // size)
    points = rate_distortion([sample.original for sample in swept])
    if points:
        figures.append(_rates(found, name, label, swept, points))
    return figures, [_codec_table(found, name, label, compared)]


def _rates(
    found: FinishedRun, name: str, label: str, samples: Sequence[Sample], points: Sequence[RatePoint]
) -> FigureData:
    bits = 8 * sum(sample.nbytes for sample in samples) / sum(sample.original.size for sample in samples)
    stored = RatePoint("headrace", bits, _mean_l2(samples))
    caption = (
        f"{_frames(samples)} of {label} through plain codecs at many tolerances, and as stored here at the bound "
        f"{describe_bound(found.bounds[name])}. Lower left is better."
    )
    png = rate_figure(points, stored, 8 * found.dataset[name].dtype.itemsize)
    return FigureData(f"Error against size: {label}", png, caption)


def _codec_table(found: FinishedRun, name: str, label: str, samples: Sequence[Sample]) -> TableData:
    bound = found.bounds[name]
    raw = sum(sample.original.nbytes for sample in samples)
    values = sum(sample.original.size for sample in samples)
    nbytes = sum(sample.nbytes for sample in samples)
    worst = max(samples, key=lambda s: s.error.excess).error
    seconds = sum(float(m["seconds"]) for m in found.markers[name]) / max(found.kept, 1)
    largest = max(s.error.max_error for s in samples)
    rows: list[tuple[Any, ...]] = [
        (
            "this run",
            round(nbytes),
            raw / nbytes,
            8 * nbytes / values,
            largest,
            _mean_l2(samples),
            worst.excess <= 1,
            seconds,
        )
    ]
    notes = []
    for plain in compare_plain([sample.original for sample in samples], bound):
        if plain.note:
            notes.append(f"{plain.codec.upper()} {plain.note}.")
            continue
        rows.append(
            (
                f"plain {plain.codec.upper()}",
                plain.nbytes,
                plain.ratio,
                plain.bits_per_value,
                plain.max_error,
                plain.rel_l2,
                plain.held,
                plain.seconds,
            )
        )
    error = with_unit("largest error", str(found.dataset[name].attrs.get("units", "")))
    columns = ("codec", "bytes", "ratio", "bits per value", error, "relative L2", "bound held", "seconds per frame")
    note = (
        f"{_frames(samples)}, bound {describe_bound(bound)}. Plain codecs get one frame at a time, unverified and "
        "without metadata; this run's bytes are those frames' share of their groups, and its seconds include "
        "all trials and the verification."
    )
    if samples[0].original.size > MOST_VALUES:
        note += " Plain codecs see a tile from the middle of each frame; their bytes are of that tile."
    return TableData(f"The same frames through plain codecs: {label}", columns, rows, " ".join([note, *notes]))


def _picture(found: FinishedRun, name: str, label: str, sample: Sample) -> FigureData:
    array, bound = found.dataset[name], found.bounds[name]
    limit = sample.error.max_error / sample.error.excess if bound.mode != "l2" and sample.error.excess > 0 else None
    axes = tuple(_axis(found, str(dim)) for dim in array.dims[1:])
    pair = FieldPair(label, str(array.attrs.get("units", "")), sample.original, sample.decoded, axes, limit)
    parts = [
        f"Kept frame {sample.number} of {found.kept}, the sample with the largest error against its bound",
        f"largest error {sample.error.max_error:.3g}" + (f", bound {limit:.3g}" if limit else ""),
        f"relative L2 error {sample.error.rel_l2:.3g}",
        *filter(None, [shown_part(pair)]),
    ]
    if limit:
        parts.append(
            "the error's colours span the bound" if sample.original.ndim > 1 else "the shaded band is the bound"
        )
    return FigureData(f"Original and decoded: {label}", field_figure(pair), "; ".join(parts) + ".")


def _axis(found: FinishedRun, dim: str) -> Axis:
    coordinate = found.dataset.coords.get(dim)
    if coordinate is None or coordinate.dtype.kind not in "fiu":
        return Axis(f"{dim} [point]")
    name = str(coordinate.attrs.get("long_name", dim))
    return Axis(with_unit(name, str(coordinate.attrs.get("units", ""))), np.asarray(coordinate.values))


def _mean_l2(samples: Sequence[Sample]) -> float:
    return float(np.sqrt(np.mean([sample.error.rel_l2**2 for sample in samples])))


def _evenly(samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most ``count`` samples, at least one: the last one alone, or the first, the last and some between."""
    chosen = np.linspace(len(samples) - 1, 0, max(1, min(count, len(samples)))).round().astype(int)
    return [samples[k] for k in sorted(set(chosen.tolist()))]


def _frames(samples: Sequence[Sample]) -> str:
    numbers = ", ".join(str(sample.number) for sample in samples)
    return f"Kept frame {numbers}" if len(samples) == 1 else f"Kept frames {numbers}"
