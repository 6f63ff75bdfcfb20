"""The two-dimensional turbulence source against closed forms, a dense reference and published numbers of its set-up."""

from itertools import islice

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from headrace.storage.errors import ConvergenceError, ParameterError, ShapeError
from headrace.tasks.simulate.kolmogorov import KolmogorovFlow


def mean_square(simulation, snapshot):
    _, _, fields = next(islice(simulation.snapshots(), snapshot, None))
    return float(np.mean(np.square(fields["vorticity"], dtype=np.float64)))


def grid(n):
    axis = np.arange(n) * (2 * np.pi / n)
    return np.meshgrid(axis, axis, indexing="ij")  # y, x


# Mean squared vorticity of the same runs by an independent pseudo-spectral code (velocity form u.grad w, five
# transforms), to the digits printed by it. The flow is chaotic: these are early enough to agree in every digit.
def test_initial_field_has_the_mean_square_of_the_reference_code():
    assert mean_square(KolmogorovFlow(256), 0) == pytest.approx(81.895, abs=5e-4)


@pytest.mark.parametrize(
    ("forced", "snapshot", "expected"),
    [(False, 40, 68.0), pytest.param(False, 80, 47.6), pytest.param(True, 100, 31.5, marks=pytest.mark.slow)],
)
def test_evolution_agrees_with_the_reference_code(forced, snapshot, expected):
    assert mean_square(KolmogorovFlow(256, forced=forced), snapshot) == pytest.approx(expected, abs=0.05)


def test_peak_speed_of_the_initial_field_is_five():
    simulation = KolmogorovFlow(64, seed=3)
    field = next(simulation.snapshots())[2]["vorticity"].astype(np.float64)
    wave = np.fft.fftfreq(64, 1 / 64)
    ky, kx = wave[:, None], wave[None, :]
    psi = np.fft.fft2(field) / np.where(kx**2 + ky**2 > 0, kx**2 + ky**2, np.inf)
    u, v = np.fft.ifft2(1j * ky * psi).real, np.fft.ifft2(-1j * kx * psi).real
    assert np.hypot(u, v).max() == pytest.approx(5.0, rel=1e-5)


def test_taylor_green_vortices_decay_at_the_exact_rate():
    y, x = grid(32)
    shape = np.cos(3 * x) * np.cos(3 * y)  # advection vanishes: w is a function of psi
    simulation = KolmogorovFlow(32, forced=False, interval=0.5, viscosity=0.02, initial=2 * shape)
    *_, (_, time, fields) = islice(simulation.snapshots(), 5)
    assert time == 2.0
    np.testing.assert_allclose(fields["vorticity"], 2 * np.exp(-0.02 * 18 * time) * shape, atol=3e-7)


def test_laminar_forced_flow_settles_where_force_and_friction_balance():
    simulation = KolmogorovFlow(16, viscosity=0.05, drag=0.9, interval=5.0, initial=np.zeros((16, 16)))
    *_, (_, _, fields) = islice(simulation.snapshots(), 5)
    y, _ = grid(16)
    np.testing.assert_allclose(fields["vorticity"], -4 * np.cos(4 * y) / (0.05 * 16 + 0.9), atol=1e-6)


def dense_derivative(n, w, viscosity, drag):
    """Right-hand side on the grid by sums over modes, written from the equation in its velocity form.

    Products are formed on a grid four times finer, where they do not alias, and projected on |kx|, |ky| < n // 3.
    """
    cut, fine = n // 3, 4 * n
    k = np.arange(-cut + 1, cut)
    coarse_wave = np.exp(1j * np.outer(np.arange(n) * 2 * np.pi / n, k))
    fine_wave = np.exp(1j * np.outer(np.arange(fine) * 2 * np.pi / fine, k))
    modes = coarse_wave.conj().T @ w @ coarse_wave.conj() / n**2  # index y, x
    ky, kx = k[:, None], k[None, :]
    square = kx**2 + ky**2
    psi = modes / np.where(square > 0, square, 1)

    def at_fine(coefficients):
        return (fine_wave @ coefficients @ fine_wave.T).real

    advected = at_fine(1j * ky * psi) * at_fine(1j * kx * modes) - at_fine(1j * kx * psi) * at_fine(1j * ky * modes)
    projected = fine_wave.conj().T @ advected @ fine_wave.conj() / fine**2
    y, _ = grid(n)
    linear = coarse_wave @ (-projected - (viscosity * square + drag) * modes) @ coarse_wave.T
    return linear.real - 4 * np.cos(4 * y)


def test_trajectory_agrees_with_a_dense_reference_and_an_adaptive_integrator():
    n, viscosity, drag = 16, 0.01, 0.1
    simulation = KolmogorovFlow(n, viscosity=viscosity, drag=drag, interval=0.02, seed=5)
    frames = [fields["vorticity"] for _, _, fields in islice(simulation.snapshots(), 16)]
    initial = KolmogorovFlow(n, viscosity=viscosity, drag=drag, seed=5)
    start = initial._backward(initial._spectrum[None])[0].copy()
    reference = solve_ivp(
        lambda _, w: dense_derivative(n, w.reshape(n, n), viscosity, drag).ravel(),
        (0, 0.3),
        start.ravel(),
        method="DOP853",
        rtol=1e-9,
        atol=1e-9,
    ).y[:, -1]
    change = np.abs(frames[15] - frames[0]).max()
    assert change > 1  # the comparison is about something
    assert np.abs(frames[15] - reference.reshape(n, n)).max() < 2e-5 * change


def test_enstrophy_budget_closes():
    """Half the mean square changes by dissipation, drag and forcing, integrated by Simpson's rule."""
    n, interval, steps = 64, 0.005, 80
    simulation = KolmogorovFlow(n, interval=interval, seed=1)
    wave = np.fft.fftfreq(n, 1 / n)
    square = wave[:, None] ** 2 + wave[None, :] ** 2
    y, _ = grid(n)
    half_square, rate = [], []
    for _, _, fields in islice(simulation.snapshots(), steps + 1):
        w = fields["vorticity"].astype(np.float64)
        gradient = np.sum(square * np.abs(np.fft.fft2(w)) ** 2) / n**4
        half_square.append(np.mean(w * w) / 2)
        rate.append(-1e-3 * gradient - 0.1 * np.mean(w * w) + np.mean(w * -4 * np.cos(4 * y)))
    weights = np.ones(steps + 1)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    predicted = np.dot(weights, rate) * interval / 3
    assert abs(predicted) > 0.5
    assert half_square[-1] - half_square[0] == pytest.approx(predicted, rel=1e-5)


def test_internal_step_divides_the_interval_and_scales_with_the_grid():
    assert KolmogorovFlow(256, interval=0.025).steps_per_snapshot == 5
    assert KolmogorovFlow(128, interval=0.025).steps_per_snapshot == 3
    assert KolmogorovFlow(128, interval=0.005).steps_per_snapshot == 1
    coarse = KolmogorovFlow(64, interval=0.07)
    assert coarse.dt * coarse.steps_per_snapshot == pytest.approx(0.07)
    assert coarse.dt <= 0.02


def test_seeds_give_different_fields_and_equal_seeds_equal_ones():
    first, same, other = (next(KolmogorovFlow(32, seed=s).snapshots())[2]["vorticity"] for s in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"n": 15}, "n=15"),
        ({"n": 8}, "n=8"),
        ({"interval": 0.0}, r"interval=0\.0"),
        ({"interval": float("nan")}, "interval=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"viscosity": -1e-3}, r"viscosity=-0\.001"),
        ({"drag": float("inf")}, "drag=inf"),
    ],
)
def test_bad_parameters_are_named(arguments, text):
    with pytest.raises(ParameterError, match=text):
        KolmogorovFlow(**{"n": 32, **arguments})


def test_initial_field_of_another_shape_is_refused():
    with pytest.raises(ShapeError, match=r"\(16, 16\)"):
        KolmogorovFlow(32, initial=np.zeros((16, 16)))


def test_blow_up_is_reported_with_step_and_time():
    simulation = KolmogorovFlow(32, viscosity=0.0, drag=0.0, initial=1e200 * np.cos(grid(32)[0] + 2 * grid(32)[1]))
    with np.errstate(all="ignore"), pytest.raises(ConvergenceError, match=r"step 1, t=0\.025"):
        list(islice(simulation.snapshots(), 20))
