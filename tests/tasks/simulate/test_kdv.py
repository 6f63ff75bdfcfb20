"""The two-soliton source against the exact solution and the conserved quantities of the equation."""

from itertools import islice

import numpy as np
import pytest

from headrace.storage.errors import ParameterError
from headrace.tasks.simulate.kdv import LENGTH, SOLITONS, KdVSolitons, two_solitons


def exact(x, t, k=SOLITONS, places=(-20.0, -5.0)):
    """Two-soliton solution in its hyperbolic form, for k1 > k2; shares no expression with the module.

    ``(k1^2 - k2^2)/2 * (k1^2 csch^2 a + k2^2 sech^2 b) / (k1 coth a - k2 tanh b)^2`` with the half-phases ``a, b``
    shifted by half the logarithm of ``(k1 - k2) / (k1 + k2)`` (Drazin & Johnson, Solitons, 1989, chapter 5).
    """
    k1, k2 = k
    shift = np.log((k1 - k2) / (k1 + k2))
    a = (k1 * (x - places[0]) - k1**3 * t + shift) / 2
    b = (k2 * (x - places[1]) - k2**3 * t + shift) / 2
    a = np.where(np.abs(a) < 1e-9, 1e-9, a)
    with np.errstate(over="ignore"):
        top = k1**2 / np.sinh(a) ** 2 + k2**2 / np.cosh(b) ** 2
        return (k1**2 - k2**2) / 2 * top / (k1 / np.tanh(a) - k2 * np.tanh(b)) ** 2


def frames(simulation, stop):
    return list(islice(simulation.snapshots(), stop + 1))


@pytest.mark.parametrize("t", [0.0, 6.0, 9.6, 16.0])
def test_initial_formula_equals_the_hyperbolic_form(t):
    x = np.linspace(-40, 40, 801)
    np.testing.assert_allclose(two_solitons(x, SOLITONS, (-20.0, -5.0), t), exact(x, t), atol=1e-12)


def test_run_follows_the_exact_solution_through_the_collision():
    simulation = KdVSolitons(512, interval=0.4)
    run = frames(simulation, 40)
    peaks = [fields["u"].max() for _, _, fields in run]
    assert min(peaks) < 0.85  # the fast one has sunk into the slow one
    assert peaks[-1] > 1.27  # and come out again
    for _, t, fields in run:
        assert np.abs(fields["u"] - exact(simulation.x, t)).max() < 2e-6


def test_the_time_step_is_of_fourth_order_or_better():
    errors = []
    for interval in (0.0025, 0.00125):
        simulation = KdVSolitons(512, interval=interval)
        for _ in range(round(10 / interval)):
            simulation._step()
        errors.append(np.abs(np.fft.irfft(simulation._spectrum, 512) - exact(simulation.x, 10.0)).max())
    assert errors[0] / errors[1] > 15


def test_mass_momentum_and_energy_are_conserved_over_many_rounds():
    simulation = KdVSolitons(256, interval=1.0)
    k = np.arange(129) * (2 * np.pi / LENGTH)

    def invariants():
        u = np.fft.irfft(simulation._spectrum, 256)
        slope = np.fft.irfft(1j * k * simulation._spectrum, 256)
        return np.array([u.mean(), (u**2).mean(), (u**3 - slope**2 / 2).mean()])

    before = invariants()
    frames(simulation, 60)
    np.testing.assert_allclose(invariants(), before, rtol=2e-5)
    # closed form: each soliton of parameter k carries 2k of mass and 2 k^3 / 3 of momentum
    assert before[0] * LENGTH == pytest.approx(2 * sum(SOLITONS), rel=1e-9)
    assert before[1] * LENGTH == pytest.approx(2 / 3 * sum(k**3 for k in SOLITONS), rel=1e-9)


def test_a_seed_moves_the_solitons_by_at_most_two():
    assert KdVSolitons(128).places == (-20.0, -5.0)
    moved = KdVSolitons(128, seed=7).places
    assert moved != (-20.0, -5.0)
    assert abs(moved[0] + 20) <= 2 >= abs(moved[1] + 5)


@pytest.mark.parametrize(
    ("arguments", "text"), [({"n": 129}, "n=129"), ({"interval": -1}, "interval=-1"), ({"seed": -1}, "seed=-1")]
)
def test_bad_parameters_are_named(arguments, text):
    with pytest.raises(ParameterError, match=text):
        KdVSolitons(**{"n": 128, **arguments})
