"""Pictures: what is drawn, not only that something is; pixels are counted by colour."""

import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from headrace.tasks.insitu.compare import RatePoint
from headrace.tasks.insitu.drawing import BLUE, GREEN, GREY, ORANGE, VERMILLION, Axis, with_unit
from headrace.tasks.insitu.figures import (
    MetricCurve,
    line_error,
    metric_figure,
    numbers_of,
    rate_figure,
    uniform_choice,
)
from headrace.tasks.insitu.pictures import FieldPair, _extent, _scale, field_figure, shown_part


def pixels(png):
    image = imread(io.BytesIO(png), format="png")
    assert image.ndim == 3
    assert min(image.shape[:2]) > 200
    return image[..., :3]


def count(image, colour, within=0.02):
    return int((np.abs(image - np.array(to_rgb(colour))).max(axis=-1) < within).sum())


def curve(kept, tolerance=1e-3, times=None):
    times = np.linspace(0, 3, 60) if times is None else times
    mask = np.zeros(60, bool)
    mask[kept] = True
    return MetricCurve("enstrophy", "enstrophy [s⁻²]", Axis("time [s]", times), np.linspace(9, 4, 60), mask, tolerance)


def test_kept_frames_are_marked_on_the_metric_curve():
    few, many = (count(pixels(metric_figure(curve(kept))), ORANGE) for kept in ([0, 59], range(0, 60, 3)))
    assert many > 5 * few > 0
    assert count(pixels(metric_figure(curve([0, 30, 59]))), BLUE) > 500


def test_error_of_the_lines_is_drawn_only_where_frames_were_dropped():
    assert count(pixels(metric_figure(curve([0, 30, 59]))), VERMILLION) > 100
    assert count(pixels(metric_figure(curve(range(60)))), VERMILLION) == 0


def test_dates_and_missing_metrics_are_drawn():
    dates = np.datetime64("2001-01-01", "ns") + np.arange(60) * np.timedelta64(30, "D")
    assert count(pixels(metric_figure(curve([0, 9, 59], times=dates))), VERMILLION) > 100
    np.testing.assert_allclose(numbers_of(dates)[:3], [0, 2592000, 5184000])
    broken = curve([0, 30, 59])
    broken.values[7] = np.nan
    assert count(pixels(metric_figure(broken)), BLUE) > 500


def test_line_error_against_a_parabola():
    t = np.linspace(0, 1, 11)
    error = line_error(t, t**2, uniform_choice(2, 11))
    np.testing.assert_allclose(error, t * (1 - t))
    assert uniform_choice(3, 11).nonzero()[0].tolist() == [0, 5, 10]


def test_the_run_has_its_star_among_the_codecs():
    points = [RatePoint(c, b, 1e-2 / b**k) for k, c in ((1, "sperr"), (2, "sz3"), (3, "zfp")) for b in (1.0, 4.0, 12.0)]
    image = pixels(rate_figure(points, RatePoint("headrace", 2.0, 3e-4), 32))
    assert all(count(image, colour) > 200 for colour in (BLUE, ORANGE, GREEN, VERMILLION))
    assert count(pixels(rate_figure(points[:3], RatePoint("headrace", 2.0, 0.0), 32)), VERMILLION) == 0  # lossless


def field(shape, seed=0):
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.standard_normal(shape), axis=-1).astype(np.float32)


def pair(original, error=1e-3, limit=2e-3, axes=None):
    noise = np.random.default_rng(1).uniform(-error, error, original.shape)
    axes = axes or tuple(Axis(f"axis {k}") for k in range(original.ndim))
    return FieldPair("height", "m", original, (original + noise).astype(original.dtype), axes, limit)


@pytest.mark.parametrize("shape", [(64,), (30, 40), (5, 200), (3, 20, 20), (2, 3, 16, 16), (1, 1)])
def test_fields_of_any_number_of_axes_are_drawn(shape):
    assert pixels(field_figure(pair(field(shape)))).std() > 0.05


@pytest.mark.parametrize(
    "original",
    [
        np.zeros((8, 8)),
        np.full((8, 8), np.nan),
        np.arange(64).reshape(8, 8),
        field((9, 9)) + 1j * field((9, 9), 2),
        np.full((8, 8), 1e30),
    ],
)
def test_unusual_fields_are_drawn(original):
    same = FieldPair("x", "1", original, original.copy(), (Axis("y"), Axis("x")))
    assert pixels(field_figure(same)).std() > 0.01


def test_missing_points_are_grey():
    whole = field((40, 40))
    holed = whole.copy()
    holed[:20] = np.nan
    assert count(pixels(field_figure(pair(holed))), "#d9d9d9") > 50_000
    assert count(pixels(field_figure(pair(whole))), "#d9d9d9") < 500


def test_the_error_line_comes_with_the_band_of_the_bound():
    band = np.array(to_rgb(GREY)) * 0.18 + 0.82
    pictures = (pixels(field_figure(pair(field((80,)), limit=limit))) for limit in (2e-3, None))
    with_bound, without = (count(picture, band, within=0.006) for picture in pictures)
    assert with_bound > 10_000
    assert without < 100


def test_error_colours_span_the_bound():
    even = field((32, 32))
    at_bound = FieldPair("x", "m", even, even + np.float32(0.5), (Axis("y"), Axis("x")), 0.5)
    assert count(pixels(field_figure(at_bound)), "#7f3b08") > 50_000  # the last colour of the map


def test_signed_fields_are_centred_and_spikes_do_not_blind():
    name, low, high = _scale(np.linspace(-3, 2, 50))
    assert (name, low, high) == ("RdBu_r", -3, 3)
    assert _scale(np.linspace(270.0, 310.0, 50)) == ("cividis", 270.0, 310.0)
    assert _scale(np.linspace(-1.9, 30.0, 50))[0] == "cividis"  # hardly signed
    spiked = np.random.default_rng(0).standard_normal(10_000)
    spiked[7] = 1e9
    assert _scale(spiked)[2] < 10


def test_extent_runs_over_cell_edges_and_falls_back_on_point_numbers():
    regular = Axis("y", np.array([10.0, 8.0, 6.0])), Axis("x", np.array([0.0, 1.0, 2.0, 3.0]))
    assert _extent(regular, (3, 4)) == (-0.5, 3.5, 11.0, 5.0)
    uneven = Axis("y", np.array([1.0, 10.0, 11.0])), Axis("x")
    assert _extent(uneven, (3, 4)) == (-0.5, 3.5, -0.5, 2.5)


def test_rows_increase_upwards_whatever_their_order():
    values = np.zeros((20, 20), np.float32)
    values[15:] = 1.0
    rising, falling = (Axis("latitude", np.linspace(a, -a, 20)) for a in (-9.5, 9.5))
    flat = Axis("longitude", np.arange(20.0))
    up = field_figure(FieldPair("x", "1", values, values, (rising, flat)))
    down = field_figure(FieldPair("x", "1", values[::-1].copy(), values[::-1].copy(), (falling, flat)))
    np.testing.assert_array_equal(pixels(up), pixels(down))


def test_captions_say_what_is_left_out():
    assert shown_part(pair(field((30, 40)))) == ""
    assert shown_part(pair(field((4, 30, 40)))) == "slice axis 0 point 2 of 4"
    assert "every 3 and 1 points" in shown_part(pair(np.zeros((3000, 10), np.float32)))
    assert "real part" in shown_part(pair(np.zeros((3, 3), complex)))


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("s-1", "w [s⁻¹]"),
        ("m s-2", "w [m s⁻²]"),
        ("m^2 s**-1", "w [m² s⁻¹]"),
        ("kg m-3", "w [kg m⁻³]"),
        ("1", "w"),
        ("", "w"),
        (None, "w"),
        ("degrees_north", "w [°N]"),
        ("1e-3", "w [1e-3]"),
        ("days since 1970-01-01", "w [days since 1970-01-01]"),
        ("(m s-1)2", "w [(m s⁻¹)²]"),
    ],
)
def test_units_are_set_with_raised_exponents(unit, text):
    assert with_unit("w", unit) == text


def test_the_same_figure_gives_the_same_bytes_in_any_thread():
    here = metric_figure(curve([0, 30, 59]))
    with ThreadPoolExecutor(2) as pool:
        there = list(pool.map(metric_figure, [curve([0, 30, 59])] * 2))
    assert there == [here, here]


def test_drawing_leaves_pyplot_alone_and_importing_loads_no_matplotlib():
    code = (
        "import sys, numpy as np\n"
        "from headrace.tasks.insitu import figures, pictures, summary\n"
        "from headrace.tasks.insitu.drawing import Axis\n"
        "print([m for m in ('matplotlib', 'xarray', 'scipy', 'prefect', 'distributed') if m in sys.modules])\n"
        "w = np.ones((4, 4)); pictures.field_figure(pictures.FieldPair('w', '1', w, w, (Axis('y'), Axis('x'))))\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]
