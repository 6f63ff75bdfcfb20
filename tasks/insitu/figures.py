"""Figures of a run: the metric curve with the frames kept, and error against size beside plain codecs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.tasks.insitu.compare import RatePoint
from headrace.tasks.insitu.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILLION,
    Axis,
    clean,
    decade_ticks,
    new_figure,
    power_ticks,
    to_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CODEC_STYLES = {"sperr": (BLUE, "o"), "sz3": (ORANGE, "s"), "zfp": (GREEN, "^")}


@dataclass(frozen=True)
class MetricCurve:
    """A metric of every frame offered, and which frames were kept; ``tolerance`` of the gate, if it had one."""

    name: str
    label: str
    time: Axis
    values: NDArray[np.float64]
    kept: NDArray[np.bool_]
    tolerance: float | None = None
    relative: bool = True


def line_error(times: NDArray[np.float64], values: NDArray[np.float64], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Error of straight lines between kept frames at every frame [metric units]."""
    result: NDArray[np.float64] = np.interp(times, times[kept], values[kept]) - values
    return result


def uniform_choice(count: int, length: int) -> NDArray[np.bool_]:
    """``count`` frames of ``length`` chosen at equal distances, the first and the last among them."""
    chosen = np.zeros(length, bool)
    chosen[np.round(np.linspace(0, length - 1, count)).astype(int)] = True
    return chosen


def numbers_of(times: NDArray[Any]) -> NDArray[np.float64]:
    """Times as float64: seconds since the first for dates, as they are otherwise."""
    if times.dtype.kind == "M":
        seconds: NDArray[np.float64] = (times - times[0]) / np.timedelta64(1, "s")
        return seconds
    return times.astype(np.float64)


# ----------------------------------------------------------------- the metric curve


def metric_figure(curve: MetricCurve) -> bytes:
    """The metric of every frame offered with the kept ones marked; below, the error of straight lines between those.

    Parameters
    ----------
    curve : at least one frame, the first one kept

    Returns
    -------
    bytes of a PNG
    """
    times = curve.time.values if curve.time.values is not None else np.arange(len(curve.values))
    thinned = 1 < curve.kept.sum() < len(curve.kept) and bool(np.isfinite(curve.values).all())
    figure = new_figure(7.2, 4.3 if thinned else 2.9)
    if thinned:
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
        _draw_line_error(below, times, curve)
        below.set_xlabel(curve.time.label)
    else:
        top = figure.subplots()
        top.set_xlabel(curve.time.label)
    top.plot(times, curve.values, color=BLUE, lw=1.4, label=f"offered, {len(times)} frames")
    top.plot(
        times[curve.kept],
        curve.values[curve.kept],
        ls="none",
        marker="o",
        ms=4.5 if curve.kept.sum() <= 120 else 2.5,
        mfc=ORANGE,
        mec="black",
        mew=0.5,
        label=f"kept, {int(curve.kept.sum())} frames",
    )
    top.set_ylabel(curve.label)
    top.legend(frameon=False)
    clean(top)
    return to_png(figure)


def _draw_line_error(ax: Axes, times: NDArray[Any], curve: MetricCurve) -> None:
    numbers = numbers_of(times)
    scale = np.abs(curve.values) if curve.relative else np.ones_like(curve.values)
    with np.errstate(divide="ignore", invalid="ignore"):
        uniform = line_error(numbers, curve.values, uniform_choice(int(curve.kept.sum()), len(numbers))) / scale
        error = line_error(numbers, curve.values, curve.kept) / scale
    ax.plot(times, uniform, color=GREY, lw=1, label="equal number at equal distances")
    ax.plot(times, error, color=VERMILLION, lw=1, label="lines between kept frames")
    if curve.tolerance is not None:
        for sign in (-1, 1):
            ax.axhline(sign * curve.tolerance, color="black", lw=0.8, ls=":", label="tolerance" if sign > 0 else None)
    ax.set_ylabel("relative error" if curve.relative else "error")
    power_ticks(ax.yaxis)
    ax.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), borderaxespad=0.2)
    clean(ax)


# ----------------------------------------------------------------- rate and distortion


def rate_figure(points: Sequence[RatePoint], stored: RatePoint, raw_bits: int) -> bytes:
    """Error against size of plain codecs, with the run's own point.

    Parameters
    ----------
    points : of the codecs, from ``rate_distortion``
    stored : of the run, on the same frames
    raw_bits : bits of an uncompressed value, for the axis of ratios

    Returns
    -------
    bytes of a PNG
    """
    figure = new_figure(6.4, 4.2)
    ax = figure.subplots()
    for codec in dict.fromkeys(point.codec for point in points):
        line = [p for p in points if p.codec == codec and p.rel_l2 > 0 and p.bits_per_value <= raw_bits]
        colour, marker = CODEC_STYLES.get(codec, (GREY, "x"))
        ax.plot(
            [p.bits_per_value for p in line],
            [p.rel_l2 for p in line],
            color=colour,
            marker=marker,
            ms=4.5,
            lw=1.3,
            label=f"plain {codec.upper()}",
        )
    if stored.rel_l2 > 0:
        ax.plot(
            stored.bits_per_value,
            stored.rel_l2,
            ls="none",
            marker="*",
            ms=17,
            color=VERMILLION,
            mec="black",
            mew=0.6,
            label="this run",
            zorder=5,
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("stored bits per value")
    ax.set_ylabel("relative L2 error")
    decade_ticks(ax.yaxis)
    _plain_ticks(ax, raw_bits)
    ax.legend(frameon=False)
    clean(ax)
    ax.grid(which="both", color="0.92", lw=0.6)
    return to_png(figure)


def _plain_ticks(ax: Axes, raw_bits: int) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = ax.get_xlim()
    ticks = [2.0**k for k in range(-20, 8) if low <= 2.0**k <= high]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda bits, _: f"{bits:.3g}"))
    ratios = ax.twiny()
    ratios.set_xscale("log")
    ratios.set_xlim(low, high)
    ratios.xaxis.set_major_locator(FixedLocator(ticks))
    ratios.xaxis.set_minor_locator(NullLocator())
    ratios.xaxis.set_major_formatter(FuncFormatter(lambda bits, _: f"{raw_bits / bits:g}"))
    ratios.set_xlabel("ratio (raw / stored)", fontsize=9)
    ratios.tick_params(labelsize=8, color="0.6")
    ratios.spines[:].set_visible(False)
