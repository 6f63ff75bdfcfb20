"""Two solitons of the Korteweg-de Vries equation, one overtaking the other on a periodic line.

    u_t + 6 u u_x + u_xxx = 0

A soliton ``(k^2 / 2) sech^2(k (x - k^2 t - x0) / 2)`` travels at speed ``k^2``; the initial field is Hirota's exact
two-soliton solution (Phys. Rev. Lett. 27, 1192, 1971), so that the collision is elastic and the run has a closed form
until the waves have gone round the domain. Space is spectral (Fourier, two-thirds rule), time is fourth-order
Runge-Kutta with an integrating factor for the third derivative. The state is float64, snapshots are float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.errors import ParameterError
from headrace.tasks.simulate.stepping import SpectralSimulation, Spectrum

if TYPE_CHECKING:
    import xarray as xr

# All quantities of the equation in this form are non-dimensional.
LENGTH = 80.0  # of the domain, x in [-40, 40)
SOLITONS = (1.6, 1.0)  # k of the fast and the slow soliton
PLACES = (-20.0, -5.0)  # where they start
SPREAD = 2.0  # by which a seed other than 0 moves them at most
LONGEST_STEP = 0.0025  # up to 512 grid points; shrinks with the grid spacing beyond. Error at t = 16: 1e-6


class KdVSolitons(SpectralSimulation):
    """Two solitons on a periodic line that yield snapshots of ``u``.

    Parameters
    ----------
    n : grid points, even, 128 to 4096.
    interval : time between snapshots, > 0. The internal step divides it: ``interval / ceil(interval / limit)`` with
        ``limit = 0.0025 * min(1, 512 / n)``.
    seed : 0 starts the solitons at -20 and -5; another seed moves each by up to 2.

    Raises
    ------
    ParameterError -- a parameter is out of range.
    """

    variable = "u"

    def __init__(self, n: int = 512, *, interval: float = 0.05, seed: int = 0) -> None:
        _check(n, seed)
        super().__init__(interval, longest_step=LONGEST_STEP * min(1.0, 512 / n))
        self.n, self.seed = n, seed
        shift = np.random.default_rng(seed).uniform(-SPREAD, SPREAD, 2) if seed else np.zeros(2)
        self.places = (PLACES[0] + float(shift[0]), PLACES[1] + float(shift[1]))
        self.x = np.arange(-(n // 2), n // 2, dtype=np.float64) * (LENGTH / n)
        k = np.arange(n // 2 + 1, dtype=np.float64) * (2 * np.pi / LENGTH)
        keep = self._keep = np.arange(n // 2 + 1) < n // 3
        self._half_turn = np.asarray(np.exp(1j * k**3 * (self.dt / 2)) * keep, dtype=np.complex128)
        self._to_tendency = np.asarray(-3j * k * keep, dtype=np.complex128)  # -6 u u_x = -3 (u^2)_x
        self._spectrum: Spectrum = np.fft.rfft(two_solitons(self.x, SOLITONS, self.places)) * keep

    def _tendency(self, spectrum: Spectrum) -> Spectrum:
        u = np.fft.irfft(spectrum, self.n)
        return self._to_tendency * np.fft.rfft(u * u)

    def _step(self) -> None:
        """Advance by dt: Runge-Kutta 4 with an integrating factor, the dispersion over dt / 2 being the factor H."""
        u, dt, half = self._spectrum, self.dt, self._half_turn
        k1 = self._tendency(u)
        k2 = self._tendency(half * (u + (dt / 2) * k1))
        k3 = self._tendency(half * u + (dt / 2) * k2)
        k4 = self._tendency(half * (half * u + dt * k3))
        self._spectrum = half * (half * (u + (dt / 6) * k1) + (dt / 3) * (k2 + k3)) + (dt / 6) * k4

    # ----------------------------------------------------------------- the source interface

    def template(self) -> xr.Dataset:
        """Dataset with a zero-length time axis that declares what the snapshots are."""
        import xarray as xr

        return xr.Dataset(
            {
                self.variable: (
                    ("time", "x"),
                    np.empty((0, self.n), np.float32),
                    {"units": "1", "long_name": "wave height"},
                )
            },
            coords={
                "time": ("time", np.empty(0), {"units": "1", "long_name": "time", "axis": "T"}),
                "x": ("x", self.x, {"units": "1", "long_name": "position", "axis": "X"}),
            },
            attrs=self._attributes(),
        )

    def _attributes(self) -> dict[str, Any]:
        return {
            "title": "Two solitons of the Korteweg-de Vries equation",
            "source": "headrace.tasks.simulate.kdv: pseudo-spectral, integrating-factor Runge-Kutta 4",
            "grid_points": self.n,
            "soliton_wavenumbers": list(SOLITONS),
            "soliton_places": list(self.places),
            "time_step": self.dt,
            "snapshot_interval": self.interval,
            "seed": self.seed,
        }

    def _from_field(self, field: NDArray[Any]) -> Spectrum:
        return np.asarray(np.fft.rfft(field.astype(np.float64)) * self._keep)

    def predictors(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Repeat the equation."""
        return {"S": ("kdv", {"n": self.n, "interval": self.interval})}

    def _snapshot(self) -> dict[str, NDArray[Any]]:
        return {self.variable: np.fft.irfft(self._spectrum, self.n).astype(np.float32)}


def two_solitons(
    x: NDArray[np.float64], wavenumbers: tuple[float, float], places: tuple[float, float], t: float = 0.0
) -> NDArray[np.float64]:
    """Hirota's two-soliton solution ``u = 2 (log F)_xx`` on the infinite line.

    ``F = 1 + e1 + e2 + a e1 e2`` with ``e_i = exp(k_i (x - x_i) - k_i^3 t)`` and ``a = ((k1 - k2) / (k1 + k2))^2``,
    divided by its largest term so that nothing overflows.

    Parameters
    ----------
    x : array, any shape, float64 -- positions
    wavenumbers : k1, k2 > 0, different
    places : phase positions x1, x2 [m]
    t : time

    Returns
    -------
    array, shape of x, float64 -- u
    """
    (k1, k2), (x1, x2) = wavenumbers, places
    p1, p2 = k1 * (x - x1) - k1**3 * t, k2 * (x - x2) - k2**3 * t
    shared = 2 * math.log(abs(k1 - k2) / (k1 + k2))
    exponents = np.stack([np.zeros_like(p1), p1, p2, p1 + p2 + shared])
    terms = np.exp(exponents - exponents.max(axis=0))
    slopes = np.array([0.0, k1, k2, k1 + k2]).reshape(-1, *([1] * np.ndim(x)))
    f, f_x, f_xx = terms.sum(axis=0), (slopes * terms).sum(axis=0), (slopes**2 * terms).sum(axis=0)
    u: NDArray[np.float64] = 2 * (f * f_xx - f_x * f_x) / (f * f)
    return u


def _check(n: int, seed: int) -> None:
    if n % 2 or not 128 <= n <= 4096:
        raise ParameterError(f"n={n} grid points;", "an even number from 128 to 4096 was expected.", "Change n.")
    if seed < 0:
        raise ParameterError(f"seed={seed};", "an integer >= 0 was expected.", "Use 0.")
