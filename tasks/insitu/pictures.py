"""Pictures of a frame before and after compression: maps of two axes, lines of one, slices of more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.tasks.insitu.drawing import (
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    Axis,
    clean,
    new_figure,
    power_ticks,
    to_png,
    with_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

MOST_PIXELS = 1200  # per axis of a picture; larger fields are drawn from every n-th point
ERROR = "decoded \N{MINUS SIGN} original"
Extent = tuple[float, float, float, float]


@dataclass(frozen=True)
class FieldPair:
    """A frame before and after; ``limit`` is the bound on each value, None for a bound on the mean square."""

    label: str
    unit: str
    original: NDArray[Any]
    decoded: NDArray[Any]
    axes: tuple[Axis, ...]
    limit: float | None = None


def field_figure(pair: FieldPair) -> bytes:
    """A frame before and after, and the difference.

    Fields of two axes are drawn as maps, of one axis as lines; of more axes the middle of the leading ones is shown.

    Parameters
    ----------
    pair : of a frame with at least one axis

    Returns
    -------
    bytes of a PNG
    """
    flat = pair.original.ndim - 2
    if flat > 0:
        middle = tuple(n // 2 for n in pair.original.shape[:flat])
        original, decoded, axes = pair.original[middle], pair.decoded[middle], pair.axes[flat:]
    else:
        original, decoded, axes = pair.original, pair.decoded, pair.axes
    if np.iscomplexobj(original):
        original, decoded = original.real, decoded.real
    before, after = original.astype(np.float64), decoded.astype(np.float64)
    if before.ndim == 1:
        return _line_fields(pair, before, after, axes[0])
    return _map_fields(pair, before, after, axes)


def shown_part(pair: FieldPair) -> str:
    """What of the frame a ``field_figure`` shows, for its caption; empty when all of it."""
    parts = []
    flat = pair.original.ndim - 2
    if flat > 0:
        places = zip(pair.axes[:flat], pair.original.shape[:flat], strict=True)
        parts.append("slice " + ", ".join(f"{axis.label} point {n // 2} of {n}" for axis, n in places))
    if np.iscomplexobj(pair.original):
        parts.append("real part")
    strides = [_stride(n) for n in pair.original.shape[-2:]]
    if max(strides) > 1:
        parts.append(f"every {' and '.join(map(str, strides))} points")
    return "; ".join(parts)


def _line_fields(pair: FieldPair, before: NDArray[np.float64], after: NDArray[np.float64], axis: Axis) -> bytes:
    figure = new_figure(7.2, 4.3)
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    x = axis.values if axis.values is not None else np.arange(len(before))
    top.plot(x, before, color=BLUE, lw=2.2, label="original")
    top.plot(x, after, color=ORANGE, lw=1.0, ls=(0, (4, 2)), label="decoded")
    top.set_ylabel(with_unit(pair.label, pair.unit))
    top.legend(frameon=False)
    below.plot(x, after - before, color=VERMILLION, lw=0.9, label=ERROR)
    if pair.limit:
        below.axhspan(-pair.limit, pair.limit, color=GREY, alpha=0.18, lw=0, label="within the bound")
        below.legend(frameon=False, loc="lower right", ncols=2, bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    below.set_ylabel(with_unit("error", pair.unit))
    below.set_xlabel(axis.label)
    power_ticks(below.yaxis)
    for ax in (top, below):
        clean(ax)
    return to_png(figure)


def _map_fields(
    pair: FieldPair, before: NDArray[np.float64], after: NDArray[np.float64], axes: tuple[Axis, ...]
) -> bytes:
    from matplotlib import colormaps

    with np.errstate(invalid="ignore"):  # infinities come back as themselves
        error = after - before
    largest = pair.limit or float(np.nanmax(np.abs(error), initial=0.0)) or 1.0
    colours, low, high = _scale(before)
    clipped = bool(np.nanmin(before, initial=low) < low or np.nanmax(before, initial=high) > high)
    extent, equal, tall = _geometry(axes, before.shape)
    figure = new_figure(10.0, 2.95 * tall + 1.5)
    panels = figure.subplots(1, 3, sharey=True)
    images = [_draw_map(ax, values, extent, equal) for ax, values in zip(panels, (before, after, error), strict=True)]
    for image, cmap, limits in zip(
        images, (colours, colours, "PuOr_r"), ((low, high),) * 2 + ((-largest, largest),), strict=True
    ):
        image.set(cmap=colormaps[cmap].with_extremes(bad="#d9d9d9"), clim=limits)
    for ax, title in zip(panels, ("original", "decoded", ERROR), strict=True):
        ax.set_title(title, fontsize=10)
        ax.set_xlabel(axes[1].label)
        clean(ax)
        ax.grid(visible=False)
    panels[0].set_ylabel(axes[0].label)
    both: dict[str, Any] = {"ax": list(panels[:2]), "aspect": 44, "extend": "both" if clipped else "neither"}
    one: dict[str, Any] = {"ax": [panels[2]], "aspect": 22}
    for image, label, place in ((images[0], pair.label, both), (images[2], "error", one)):
        bar: Any = figure.colorbar(image, location="bottom", fraction=0.06, pad=0.03, **place)
        bar.set_label(with_unit(label, pair.unit), size=9)
        bar.ax.tick_params(labelsize=8, color="0.6")
        bar.outline.set_visible(False)
        power_ticks(bar.long_axis, -3, 4)
    return to_png(figure)


def _draw_map(ax: Axes, values: NDArray[np.float64], extent: Extent, equal: bool) -> AxesImage:
    rows, columns = values.shape
    image = ax.imshow(
        values[:: _stride(rows), :: _stride(columns)],
        origin="lower",
        extent=extent,
        aspect="equal" if equal else "auto",
    )
    ax.set_xlim(
        min(extent[:2]), max(extent[:2])
    )  # positions increase to the right and upwards whatever their order in the array
    ax.set_ylim(min(extent[2:]), max(extent[2:]))
    return image


def _geometry(axes: tuple[Axis, ...], shape: tuple[int, ...]) -> tuple[Extent, bool, float]:
    """Extent of a map, whether both axes have one scale, and the height of a panel over its width."""
    extent = _extent(axes, shape)
    slope = abs(extent[3] - extent[2]) / abs(extent[1] - extent[0])
    equal = 0.2 < slope < 5
    return extent, equal, min(max(slope if equal else shape[0] / shape[1], 0.4), 1.6)


def _scale(values: NDArray[np.float64]) -> tuple[str, float, float]:
    """Colour map and limits: centred on zero where both signs matter; the outermost 0.1 % may leave the scale."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "cividis", 0.0, 1.0
    low, high = (float(v) for v in np.percentile(finite, [0.05, 99.95]))
    if finite.max() - finite.min() < 3 * (high - low):  # no spikes: show the whole range
        low, high = float(finite.min()), float(finite.max())
    if low < 0 < high and min(-low, high) > 0.2 * max(-low, high):
        most = max(-low, high)
        return "RdBu_r", -most, most
    return "cividis", low, high if high > low else low + (abs(low) or 1.0) * 1e-3


def _extent(axes: tuple[Axis, ...], shape: tuple[int, ...]) -> Extent:
    """Left, right, bottom, top of the picture: edges of the outer points where positions are evenly spaced."""
    edges: list[tuple[float, float]] = []
    for axis, n in zip(axes, shape, strict=True):
        x = axis.values
        even = x is not None and n > 1 and x.dtype.kind in "fiu" and bool(np.isfinite(x).all())
        if even and x is not None:
            steps = np.diff(x.astype(np.float64))
            even = steps[0] != 0 and bool(np.allclose(steps, steps.mean(), rtol=0.02, atol=0))
        if even and x is not None:
            half = float(x[-1] - x[0]) / (n - 1) / 2
            edges.append((float(x[0]) - half, float(x[-1]) + half))
        else:
            edges.append((-0.5, n - 0.5))
    (bottom, top), (left, right) = edges
    return left, right, bottom, top


def _stride(n: int) -> int:
    return -(-n // MOST_PIXELS)
