"""The report of a compression run: numbers, tables and figures, from the run folder alone.

``summarise`` returns plain tuples in the order of a report's tables and figures, so that the flow can hand them on.
Every number of bytes is of files on disk: chunks, metadata, coordinates and the audit trail of the frames offered.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headrace.tasks.insitu.drawing import Axis, with_unit
from headrace.tasks.insitu.figures import MetricCurve, line_error, numbers_of, uniform_choice
from headrace.tasks.insitu.illustrate import FigureData, TableData, curve_figure, describe_bound, illustrate
from headrace.tasks.insitu.measure import FinishedRun, Sample
from headrace.tasks.simulate import SIMULATIONS

METRIC_NAMES = {
    "ratio": "raw bytes of the kept frames over bytes on disk",
    "total_ratio": "raw bytes of all frames offered over bytes on disk",
    "bits_per_value": "stored bits per value of the kept frames",
    "offered": "frames the source gave",
    "kept": "frames in the store",
    "bytes_on_disk": "bytes of the store, metadata included",
    "violations": "values or frames beyond the bound, from records and re-read samples; 0 unless something is broken",
    "encode_seconds_per_frame": "CPU seconds of encoding per kept frame",
    "source_seconds_per_frame": "CPU seconds of the source per frame offered: solving, or reading a file",
    "bound_used.VARIABLE": "largest error of any frame over what the bound allows there: at most 1",
    "bound.VARIABLE": "bound as given: absolute, relative to the range, or relative to the root mean square",
    "max_error.VARIABLE": "largest error of any frame [units of the variable]",
    "rel_l2.VARIABLE": "largest relative L2 error of any frame",
    "metric_error.METRIC": "largest relative error of it on straight lines between kept frames, if any were dropped",
}
MOST_VARIABLES = 4  # shown in pictures and compared with plain codecs; the tables list all


@dataclass
class Summary:
    """What a report shows; ``metrics`` are finite numbers named in ``METRIC_NAMES``."""

    metrics: dict[str, float] = field(default_factory=dict)
    tables: list[TableData] = field(default_factory=list)
    figures: list[FigureData] = field(default_factory=list)


def summarise(
    run: Path,
    *,
    seconds_solver: float | None = None,
    seconds_encode: float | None = None,
    tolerance: float | None = None,
    relative: bool = True,
    pictures: bool = True,
) -> Summary:
    """Measure a finished run and describe it.

    Parameters
    ----------
    run : run folder with ``data.zarr``, completion markers and sample frames
    seconds_solver : CPU seconds of the source; by default that of ``run.json``, if any
    seconds_encode : CPU seconds of encoding; by default that of ``run.json``, or else the sum over the markers
    tolerance, relative : of the gate, drawn beside the metric's error; by default what ``run.json`` says
    pictures : whether to draw the figures and to run the plain codecs

    Returns
    -------
    Summary

    Raises
    ------
    SourceError, StoreError -- the folder is no run of compress, or it is damaged
    """
    found = FinishedRun(run)
    samples = {name: found.samples(name) for name in found.bounds}
    summary = Summary(metrics=_numbers(found, samples))
    _add_seconds(summary, found, seconds_solver, seconds_encode)
    if tolerance is None and found.kept < found.offered:
        tolerance = found.record.get("params", {}).get("gate_tolerance")
    curves = metric_curves(found, tolerance, relative)
    if pictures and found.offered > 1:
        summary.figures += [curve_figure(curve) for curve in curves[:MOST_VARIABLES]]
    _add_metric_errors(summary, curves)
    summary.tables.insert(0, _field_table(found, samples))
    for name in list(found.bounds)[:MOST_VARIABLES] if pictures else ():
        figures, tables = illustrate(found, name, samples[name])
        summary.figures += figures
        summary.tables += tables
    summary.tables.append(_record_table(found))
    summary.metrics = {key: float(value) for key, value in summary.metrics.items() if math.isfinite(value)}
    return summary


# ----------------------------------------------------------------- numbers


def _numbers(found: FinishedRun, samples: dict[str, list[Sample]]) -> dict[str, float]:
    disk, kept, offered = max(found.bytes_on_disk, 1), found.kept, found.offered
    values = kept * sum(found.frame_values(name) for name in found.bounds)
    numbers: dict[str, float] = {
        "ratio": kept * found.frame_bytes() / disk,
        "total_ratio": offered * found.frame_bytes() / disk,
        "bits_per_value": 8 * disk / max(values, 1),
        "offered": offered,
        "kept": kept,
        "bytes_on_disk": disk,
        "violations": sum(
            found.recorded_violations(name) + sum(sample.error.violations for sample in samples[name])
            for name in found.bounds
        ),
    }
    for name, bound in found.bounds.items():
        largest, relative = _worst(found, name, samples[name])
        numbers |= {
            f"bound_used.{name}": found.bound_used(name),
            f"bound.{name}": bound.value,
            f"max_error.{name}": largest,
            f"rel_l2.{name}": relative,
        }
    return numbers


def _worst(found: FinishedRun, name: str, samples: Sequence[Sample]) -> tuple[float, float]:
    """Largest error and largest relative L2 error of a variable, over all records and re-read samples."""
    pairs = [(r.max_error, r.rel_l2) for r in found.frame_records(name)]
    pairs += [(s.error.max_error, s.error.rel_l2) for s in samples]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    table = np.where(np.isnan(table), 0.0, table)
    largest, relative = table.max(axis=0, initial=0.0)
    return float(largest), float(relative)


def _add_seconds(summary: Summary, found: FinishedRun, solver: float | None, encode: float | None) -> None:
    solver = found.record.get("seconds_solver") if solver is None else solver
    encode = found.record.get("seconds_encode") if encode is None else encode
    if encode is None:
        encode = sum(float(m["seconds"]) for markers in found.markers.values() for m in markers)
    per_kept = float(encode) / max(found.kept, 1)
    summary.metrics["encode_seconds_per_frame"] = per_kept
    rows = [
        ("encoding, per frame kept", per_kept),
        ("encoding, per frame offered", float(encode) / max(found.offered, 1)),
    ]
    if solver is not None:
        per_offered = float(solver) / max(found.offered, 1)
        summary.metrics["source_seconds_per_frame"] = per_offered
        built_in = found.record.get("params", {}).get("source") in SIMULATIONS
        rows.insert(0, (f"{'solver' if built_in else 'reading'}, per frame offered", per_offered))
    note = "CPU seconds, summed over all workers; encoding includes decoding and checking every value."
    summary.tables.append(TableData("Seconds per frame", ("work", "CPU seconds"), rows, note))


def _add_metric_errors(summary: Summary, curves: Sequence[MetricCurve]) -> None:
    rows = []
    for curve in curves:
        if curve.kept.all() or not np.isfinite(curve.values).all():
            continue
        times = numbers_of(np.asarray(curve.time.values))
        largest = max(float(np.max(np.abs(curve.values))), np.finfo(float).tiny)
        scale = np.maximum(np.abs(curve.values), 1e-12 * largest)
        kept = float(np.max(np.abs(line_error(times, curve.values, curve.kept)) / scale))
        uniform_kept = uniform_choice(int(curve.kept.sum()), len(times))
        uniform = float(np.max(np.abs(line_error(times, curve.values, uniform_kept)) / scale))
        summary.metrics[f"metric_error.{curve.name}"] = kept
        rows.append((curve.label, kept, uniform))
    if rows:
        columns = ("metric", "largest relative error", "with as many frames at equal distances")
        note = "Error of straight lines between the frames kept, at every frame offered."
        summary.tables.append(TableData("Metrics between kept frames", columns, rows, note))


def metric_curves(found: FinishedRun, tolerance: float | None = None, relative: bool = True) -> list[MetricCurve]:
    """The metrics of every frame offered, as the store keeps them.

    Parameters
    ----------
    found : the run
    tolerance, relative : of the gate

    Returns
    -------
    list of MetricCurve
    """
    ds = found.dataset
    if "offered_time" not in ds or not ds.sizes["offered"]:
        return []
    kept = np.asarray(ds["offered_kept"].values, bool)
    time = _offered_time(found)
    curves = []
    for name in (str(each) for each in ds.data_vars if str(each).startswith("metric_")):
        values = np.asarray(ds[name].values, np.float64)
        short = name.removeprefix("metric_")
        label = with_unit(short.replace("_", " "), metric_unit(found, name))
        curves.append(MetricCurve(short, label, time, values, kept, tolerance, relative))
    return curves


def metric_unit(found: FinishedRun, name: str) -> str:
    """Unit of a metric from that of its variable; empty where it is not known."""
    described = re.match(r"(\w+) of (.+) at every frame", str(found.dataset[name].attrs.get("long_name", "")))
    if not described or described[2] not in found.dataset:
        return ""
    unit = str(found.dataset[described[2]].attrs.get("units", ""))
    if described[1] != "enstrophy" or unit in ("", "1"):
        return unit
    if not re.fullmatch(r"[A-Za-z]+(-?\d+)?( [A-Za-z]+(-?\d+)?)*", unit):
        return f"({unit})2"
    return " ".join(
        re.sub(r"-?\d*$", lambda power: str(2 * int(power[0] or 1)), factor, count=1) for factor in unit.split()
    )


# ----------------------------------------------------------------- tables


def _field_table(found: FinishedRun, samples: dict[str, list[Sample]]) -> TableData:
    rows = []
    for name, bound in found.bounds.items():
        array = found.dataset[name]
        largest, relative = _worst(found, name, samples[name])
        stored = max(found.stored_bytes(name), 1)
        rows.append(
            (
                with_unit(name, str(array.attrs.get("units", ""))),
                f"{array.dtype} {'x'.join(map(str, array.shape[1:])) or 'scalar'}",
                describe_bound(bound),
                largest,
                relative,
                found.kept * found.frame_bytes(name) / stored,
                8 * stored / max(found.kept * found.frame_values(name), 1),
            )
        )
    columns = ("variable", "frame", "bound", "largest error", "largest relative L2", "ratio", "bits per value")
    note = "Errors are of the worst frame in the store. Sizes here are of the variable's chunks alone."
    return TableData("Fields", columns, rows, note)


def _record_table(found: FinishedRun) -> TableData:
    kinds = {"I": "alone", "P": "as difference to the frame before", "L": "lossless"}
    sizes: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for name in found.bounds:
        for record in found.frame_records(name):
            sizes[name, record.kind, record.codec].append(record.nbytes)
    total = sum(map(sum, sizes.values())) or 1.0
    rows = [
        (
            name,
            f"{kind}: {kinds[kind]}" if kind in kinds else kind,
            codec,
            len(each),
            sum(each) / 1000,
            sum(each) / total,
        )
        for (name, kind, codec), each in sorted(sizes.items())
    ]
    columns = ("variable", "kind", "codec", "frames of blocks", "kB", "share of bytes")
    note = "The encoder tries several ways on every group of frames and keeps the smallest that holds the bound."
    return TableData("How frames are stored", columns, rows, note)


def _offered_time(found: FinishedRun) -> Axis:
    """Times of the frames offered, which are stored as numbers: dates where the time axis holds dates numpy knows."""
    numbers = np.asarray(found.dataset["offered_time"].values, np.float64)
    time = found.dataset.coords.get(str(found.dataset[next(iter(found.bounds))].dims[0]))
    if time is None or not time.size:
        return Axis("frame", numbers)
    if time.dtype.kind == "M":
        return Axis("date", np.asarray(time.values[0] + (numbers * 1e9).round().astype("timedelta64[ns]")))
    if time.dtype.kind in "fiu":
        return Axis(with_unit(str(time.attrs.get("long_name", time.name)), str(time.attrs.get("units", ""))), numbers)
    return Axis("days since the first frame", numbers / 86400)  # a calendar of its own
