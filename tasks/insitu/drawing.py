"""What all pictures of a run share: labels, colours, the look of axes, and the way to PNG bytes.

Pictures are drawn on ``matplotlib.figure.Figure`` objects with the Agg canvas: no window, no ``pyplot``, no global
state, so they can be drawn in any thread of any program. Colours are those of Okabe and Ito, which people with any
colour vision tell apart.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILLION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"
DPI = 144
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_UNIT_SIGNS = {"degrees_north": "°N", "degrees_east": "°E", "degree_north": "°N", "degree_east": "°E", "degC": "°C"}


class Axis(NamedTuple):
    """A label with its unit, and the positions along the axis (None: numbers of the points)."""

    label: str
    values: NDArray[Any] | None = None


def with_unit(name: str, unit: str | None) -> str:
    """``name [unit]`` with raised exponents: ``vorticity [s⁻¹]``; the bare name where there is no unit."""
    if not unit or unit == "1":
        return name
    if unit[0].isdigit():  # a factor such as 1e-3
        return f"{name} [{unit}]"
    raised = re.sub(r"(?<=[A-Za-z)])(\^|\*\*)?(-?\d+)(?![\d:-])", lambda found: found[2].translate(_SUPERSCRIPTS), unit)
    return f"{name} [{_UNIT_SIGNS.get(unit, raised)}]"


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure [inches] that lays itself out."""
    from matplotlib import dates  # noqa: F401 - registers date axes
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height), layout="constrained", facecolor="white")


def clean(ax: Axes) -> None:
    """Quiet axes: two spines, a faint grid, small labels."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("0.6")
    ax.tick_params(color="0.6", labelsize=8)
    ax.xaxis.label.set_fontsize(9)
    ax.yaxis.label.set_fontsize(9)
    ax.grid(color="0.92", lw=0.6)
    ax.set_axisbelow(True)
    legend = ax.get_legend()
    if legend:
        for text in legend.get_texts():
            text.set_fontsize(8)


def to_png(figure: Figure) -> bytes:
    """Draw the figure; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()
