"""What all pictures of a run share: labels, colours, the look of axes, and the way to PNG bytes.

Pictures are drawn on ``matplotlib.figure.Figure`` objects with the Agg canvas: no window, no ``pyplot``, no global
state, so they can be drawn in any thread of any program. Colours are those of Okabe and Ito, which people with any
colour vision tell apart.
"""

from __future__ import annotations

import io
import math
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


def power_ticks(axis: Any, low: int = -2, high: int = 3) -> None:
    """Label an axis with plain numbers, and a power of ten at its end when they are small or large.

    The power is written in Unicode: matplotlib's mathematical text costs a third of a second to set up.
    """
    from matplotlib.ticker import ScalarFormatter

    class Raised(ScalarFormatter):
        def get_offset(self) -> str:
            mantissa, e, exponent = super().get_offset().replace("\N{MINUS SIGN}", "-").partition("e")
            return f"\N{MULTIPLICATION SIGN}{power_of_ten(int(exponent))}" if e else mantissa

    formatter = Raised(useOffset=False, useMathText=False)
    formatter.set_powerlimits((low, high))
    axis.set_major_formatter(formatter)


def decade_ticks(axis: Any) -> None:
    """Label a logarithmic axis at powers of ten, in Unicode."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(round(math.log10(value)))))
    axis.set_minor_formatter(NullFormatter())


def power_of_ten(exponent: int) -> str:
    """Write a power of ten: -3 gives 10 with a raised -3."""
    return "10" + str(exponent).translate(_SUPERSCRIPTS)


def to_png(figure: Figure) -> bytes:
    """Draw the figure; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()
