"""Metrics against closed forms, and their behaviour on fields that simulations and archives really have."""

import math

import numpy as np
import pytest

from headrace.storage.errors import ShapeError
from headrace.tasks.insitu.metrics import METRICS, enstrophy, max_abs, mean, pearson, rms, roughness


def test_values_on_a_sine_wave():
    x = np.arange(64) * (2 * np.pi / 64)
    field = (1 + 3 * np.sin(x)).astype(np.float32)
    assert mean(field) == pytest.approx(1.0)
    assert enstrophy(field) == pytest.approx(1 + 9 / 2)
    assert rms(field) == pytest.approx(math.sqrt(5.5))
    assert max_abs(-field) == pytest.approx(4.0)


def test_sums_are_formed_in_float64():
    field = np.full(1_000_003, 0.1, dtype=np.float32)
    assert mean(field) == pytest.approx(float(np.float32(0.1)), rel=1e-12)
    assert mean(np.full(1000, 60_000, dtype=np.float16)) == pytest.approx(59_968, rel=1e-3)  # not inf
    assert mean(np.full(300, 255, dtype=np.uint8)) == 255
    assert enstrophy(np.full(10, 100, dtype=np.int8)) == 10_000


def test_roughness_is_the_size_of_steps_and_does_not_depend_on_where_a_wave_is():
    y, x = np.meshgrid(np.arange(4.0), np.arange(5.0), indexing="ij")
    assert roughness(3 * x + 4 * y) == pytest.approx(math.sqrt((16 * 9 + 15 * 16) / 31))
    line = np.linspace(-40, 40, 513)[:-1]
    moving = [
        np.array([f(1.28 / np.cosh(0.8 * (line - s)) ** 2) for s in (0, 0.02, 0.05)]) for f in (roughness, max_abs)
    ]
    assert np.ptp(moving[0]) < 1e-10
    assert np.ptp(moving[1]) > 1e-4


@pytest.mark.parametrize("name", sorted(set(METRICS) - {"roughness"}))
def test_land_points_do_not_count(name):
    values = np.array([1.0, -2.0, 4.0], dtype=np.float32)
    masked = np.array([np.nan, 1.0, np.inf, -2.0, 4.0, -np.inf], dtype=np.float32)
    assert METRICS[name](masked) == METRICS[name](values)
    assert METRICS[name](masked.astype(">f4").reshape(2, 3)) == METRICS[name](values)


def test_steps_from_land_to_sea_do_not_count():
    assert roughness(np.array([[1.0, 3.0], [np.nan, 5.0]])) == pytest.approx(2.0)


@pytest.mark.parametrize("name", sorted(METRICS))
@pytest.mark.parametrize("field", [np.full((2, 2), np.nan), np.empty((0, 3))])
def test_no_finite_value_gives_nan(name, field):
    assert math.isnan(METRICS[name](field))


def test_rms_neither_overflows_nor_vanishes():
    assert rms(np.array([3e200, 4e200])) == pytest.approx(math.sqrt(12.5) * 1e200)
    assert rms(np.array([3e-200, 4e-200])) == pytest.approx(math.sqrt(12.5) * 1e-200)
    assert rms(np.zeros(3)) == 0


def test_complex_fields_count_by_modulus():
    assert enstrophy(np.array([3 + 4j, 0j])) == pytest.approx(12.5)
    assert max_abs(np.array([3 + 4j, 1j])) == 5


def test_pearson_equals_the_library_value():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((20, 30)).astype(np.float32)
    b = (0.7 * a + rng.standard_normal((20, 30)) + 1000).astype(np.float32)
    assert pearson(a, b) == pytest.approx(np.corrcoef(a.ravel(), b.astype(np.float64).ravel())[0, 1], rel=1e-9)
    assert pearson(a, -a) == -1


def test_pearson_uses_the_points_finite_in_both():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 50))
    expected = np.corrcoef(a[2:-3], b[2:-3])[0, 1]
    a[:2], b[-3:] = np.nan, np.inf
    assert pearson(a, b) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.full(5, 0.1), np.full(5, 0.1), 1),  # constant and equal; 0.1 has no exact mean
        (np.full(5, 0.1), np.full(5, 0.2), 0),
        (np.full(5, 0.1), np.arange(5.0), 0),
        (np.full(5, np.nan), np.full(5, np.nan), 1),
        (np.full(5, np.nan), np.arange(5.0), 0),
        (np.array([np.nan, 1.0]), np.array([1.0, np.nan]), 0),
        (np.array([1e300, -1e300, 3e300]), np.array([1e-300, -1e-300, 3e-300]), 1),
        (np.array([1 + 1j, 2 - 1j, 1j]), np.array([1 + 1j, 2 - 1j, 1j]), 1),
        (np.empty(0), np.empty(0), 1),
    ],
)
def test_pearson_of_special_fields(a, b, expected):
    assert pearson(a, b) == pytest.approx(expected, abs=1e-12)


def test_pearson_refuses_another_grid():
    with pytest.raises(ShapeError, match=r"\(2,\) and \(3,\)"):
        pearson(np.zeros(2), np.zeros(3))
