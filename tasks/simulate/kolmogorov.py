"""Two-dimensional turbulence on a periodic square: Kolmogorov flow, forced or decaying.

The vorticity ``w = v_x - u_y`` of an incompressible flow on ``[0, 2 pi) x [0, 2 pi)`` obeys

    w_t + u w_x + v w_y = nu (w_xx + w_yy) - mu w + curl f,    f = (sin 4y, 0),  curl f = -4 cos 4y,

with ``u = psi_y``, ``v = -psi_x`` and ``-(psi_xx + psi_yy) = w``. Without forcing and drag the flow decays. Space is
spectral (Fourier, two-thirds rule), time is fourth-order Runge-Kutta with an integrating factor, so that viscosity and
drag are exact. The state is float64, snapshots are float32.

The nonlinear term is evaluated in the form ``(d_xx - d_yy)(uv) + d_x d_y (v^2 - u^2)``, which equals
``u w_x + v w_y`` for a divergence-free velocity and needs four transforms instead of five (Basdevant, J. Comput. Phys.
50, 1983). Only the columns that survive the two-thirds rule are stored and transformed along y.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.errors import ParameterError, ShapeError
from headrace.tasks.simulate.stepping import SpectralSimulation, Spectrum

if TYPE_CHECKING:
    import xarray as xr

FORCING_WAVENUMBER = 4
FORCED_DRAG = 0.1  # [s-1]
PEAK_SPEED = 5.0  # of the initial field [m s-1]
STEP_AT_256 = 0.005  # largest time step on a 256 x 256 grid [s]; scales with the grid spacing


class KolmogorovFlow(SpectralSimulation):
    """Forced or decaying two-dimensional turbulence that yields vorticity snapshots.

    Parameters
    ----------
    n : grid points per side, even, 16 to 8192.
    forced : drive the flow with ``f = (sin 4y, 0)`` and damp it with ``drag``; otherwise it decays freely.
    interval : time between snapshots [s], > 0. The internal step divides it: ``interval / ceil(interval / limit)``
        with ``limit = 0.005 * 256 / n``.
    seed : of the random initial field, >= 0.
    viscosity : nu [m2 s-1], >= 0.
    drag : mu [s-1], >= 0; by default 0.1 when forced, else 0.
    initial : array, shape (n, n), float64 -- initial vorticity [s-1] on the grid (y, x) instead of the random field.
        Its mean and the wavenumbers beyond the two-thirds rule are removed.

    Raises
    ------
    ParameterError -- a parameter is out of range.
    ShapeError -- ``initial`` has another shape than (n, n).
    """

    variable = "vorticity"

    def __init__(
        self,
        n: int = 256,
        *,
        forced: bool = True,
        interval: float = 0.025,
        seed: int = 0,
        viscosity: float = 1e-3,
        drag: float | None = None,
        initial: NDArray[np.float64] | None = None,
    ) -> None:
        self.drag = (FORCED_DRAG if forced else 0.0) if drag is None else drag
        _check(n, seed, viscosity, self.drag)
        super().__init__(interval, longest_step=STEP_AT_256 * 256 / n)
        self.n, self.forced, self.seed, self.viscosity = n, forced, seed, viscosity
        self._wavenumbers()
        self._buffers()
        self._spectrum = self._random_field() if initial is None else self._given_field(initial)

    # ----------------------------------------------------------------- the equation

    def _buffers(self) -> None:
        """Scratch arrays. Fresh ones of this size cost more time in page faults than the arithmetic takes."""
        n, cut = self.n, self.n // 3
        self._fields, self._products = np.empty((2, n, n)), np.empty((2, n, n))
        self._half = np.empty((2, n, n // 2 + 1), np.complex128)
        self._columns, self._spectra = np.empty((2, n, cut), np.complex128), np.empty((2, n, cut), np.complex128)
        self._slopes, self._stage = np.empty((4, n, cut), np.complex128), np.empty((n, cut), np.complex128)

    def _wavenumbers(self) -> None:
        n, cut = self.n, self.n // 3
        ky = np.fft.fftfreq(n, 1.0 / n)[:, None]
        kx = np.arange(cut, dtype=np.float64)[None, :]
        keep = (np.abs(ky) < cut) & (kx < cut)
        k2 = kx * kx + ky * ky
        k2_safe = np.where(k2 > 0, k2, 1.0)
        damping = np.where(keep, np.exp(-(self.viscosity * k2 + self.drag) * self.dt / 2), 0.0)
        self._keep, self._k2 = keep, k2
        # Stacked so that (u, v) is one product with the vorticity and one batched transform.
        self._to_velocity = np.stack([1j * ky / k2_safe + 0 * kx, -1j * kx / k2_safe + 0 * ky]) * keep
        # (d_xx - d_yy) and d_x d_y of the two products, with the sign of the right-hand side.
        self._to_tendency = np.stack([kx * kx - ky * ky, kx * ky + 0 * k2]) * keep
        self._half_damping = damping
        self._forcing = np.zeros((n, cut), np.complex128)
        if self.forced:  # -4 cos 4y: two modes at kx = 0
            self._forcing[[FORCING_WAVENUMBER, -FORCING_WAVENUMBER], 0] = -0.5 * FORCING_WAVENUMBER * n * n

    def _forward(self, fields: NDArray[np.float64]) -> Spectrum:
        """Real fields (m, n, n) to the kept columns of their spectra (m, n, n // 3), in a buffer that is reused."""
        m, cut = len(fields), self.n // 3
        half = np.fft.rfft(fields, axis=-1, out=self._half[:m])
        return np.fft.fft(half[..., :cut], axis=-2, out=self._spectra[:m])

    def _backward(self, spectra: Spectrum) -> NDArray[np.float64]:
        """Spectra (m, n, n // 3) to real fields (m, n, n), in a buffer that is reused."""
        m = len(spectra)
        columns = np.fft.ifft(spectra, axis=-2, out=self._columns[:m])
        return np.fft.irfft(columns, self.n, axis=-1, out=self._fields[:m])

    def tendency(self, spectrum: Spectrum, out: Spectrum | None = None) -> Spectrum:
        """Advection and forcing, the right-hand side without viscosity and drag.

        Parameters
        ----------
        spectrum : array, shape (n, n // 3), complex128 -- unnormalised Fourier coefficients of the vorticity
        out : array of the same shape to write into; a new one by default

        Returns
        -------
        array, shape (n, n // 3), complex128 -- coefficients of ``-(u w_x + v w_y) + curl f`` [s-2], two-thirds rule
        applied
        """
        np.multiply(self._to_velocity, spectrum, out=self._spectra)
        u, v = self._backward(self._spectra)
        np.multiply(u, v, out=self._products[0])
        np.subtract(v, u, out=self._products[1])
        v += u
        self._products[1] *= v  # (v - u)(v + u) = v^2 - u^2
        products = self._forward(self._products)
        products *= self._to_tendency
        result: Spectrum = np.add(products[0], products[1], out=out)
        result += self._forcing
        return result

    def _step(self) -> None:
        """Advance by dt: Runge-Kutta 4 with the integrating factor E = H^2, H the damping over dt / 2.

        ``k1 = N(w), k2 = N(H (w + dt/2 k1)), k3 = N(H w + dt/2 k2), k4 = N(E w + dt H k3)`` and
        ``w <- E w + dt/6 (H (H k1 + 2 (k2 + k3)) + k4)``, written in place for the reason given at the buffers.
        """
        w, damp, dt = self._spectrum, self._half_damping, self.dt
        (k1, k2, k3, k4), stage = self._slopes, self._stage
        self.tendency(w, out=k1)
        np.multiply(k1, dt / 2, out=stage)
        stage += w
        stage *= damp
        self.tendency(stage, out=k2)
        w *= damp
        np.multiply(k2, dt / 2, out=stage)
        stage += w
        self.tendency(stage, out=k3)
        np.multiply(k3, dt, out=stage)
        stage += w
        stage *= damp
        self.tendency(stage, out=k4)
        k2 += k3
        k2 *= 2
        k1 *= damp
        k1 += k2
        k1 *= damp
        k1 += k4
        k1 *= dt / 6
        w *= damp
        w += k1

    # ----------------------------------------------------------------- initial fields

    def _random_field(self) -> Spectrum:
        """Gaussian noise shaped by ``k^2 exp(-(k/4)^2)`` and scaled to a peak speed of 5."""
        noise = np.random.default_rng(self.seed).standard_normal((self.n, self.n)).T  # drawn as (x, y)
        spectrum: Spectrum = self._forward(noise[None])[0] * (self._k2 * np.exp(-self._k2 / 16) * self._keep)
        u, v = self._backward(self._to_velocity * spectrum)
        return spectrum * (PEAK_SPEED / math.sqrt(float(np.max(u * u + v * v))))

    def _from_field(self, field: NDArray[Any]) -> Spectrum:
        return self._given_field(field)

    def predictors(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Repeat the flow, or move its vorticity with it."""
        own = {name: getattr(self, name) for name in ("n", "forced", "interval", "viscosity", "drag")}
        moved: dict[str, Any] = {"viscosity": self.viscosity, "drag": self.drag}
        if self.forced:
            moved |= {"forcing": float(FORCING_WAVENUMBER), "forcing_wavenumber": FORCING_WAVENUMBER}
        return {"S": ("kolmogorov", own), "A": ("advected-vorticity", moved)}

    def _given_field(self, initial: NDArray[np.float64]) -> Spectrum:
        field = np.asarray(initial, dtype=np.float64)
        if field.shape != (self.n, self.n):
            raise ShapeError(
                f"the initial vorticity has shape {field.shape};", f"({self.n}, {self.n}) was expected.", "Resample it."
            )
        spectrum: Spectrum = self._forward(field[None])[0] * self._keep
        spectrum[0, 0] = 0.0
        return spectrum

    # ----------------------------------------------------------------- the source interface

    def template(self) -> xr.Dataset:
        """Dataset with a zero-length time axis that declares what the snapshots are."""
        import xarray as xr

        axis = np.arange(self.n) * (2 * np.pi / self.n)
        attrs = {"units": "s-1", "long_name": "vorticity"}
        return xr.Dataset(
            {self.variable: (("time", "y", "x"), np.empty((0, self.n, self.n), np.float32), attrs)},
            coords={
                "time": ("time", np.empty(0), {"units": "s", "long_name": "time", "axis": "T"}),
                "y": ("y", axis, {"units": "m", "long_name": "y", "axis": "Y"}),
                "x": ("x", axis, {"units": "m", "long_name": "x", "axis": "X"}),
            },
            attrs=self._attributes(),
        )

    def _attributes(self) -> dict[str, Any]:
        return {
            "title": f"{'Forced' if self.forced else 'Decaying'} two-dimensional Kolmogorov flow",
            "source": "headrace.tasks.simulate.kolmogorov: pseudo-spectral, integrating-factor Runge-Kutta 4",
            "grid_points": self.n,
            "viscosity": self.viscosity,
            "drag": self.drag,
            "forcing_wavenumber": FORCING_WAVENUMBER if self.forced else 0,
            "time_step": self.dt,
            "snapshot_interval": self.interval,
            "seed": self.seed,
        }

    def _snapshot(self) -> dict[str, NDArray[Any]]:
        return {self.variable: self._backward(self._spectrum[None])[0].astype(np.float32)}


def _check(n: int, seed: int, viscosity: float, drag: float) -> None:
    if n % 2 or not 16 <= n <= 8192:
        raise ParameterError(
            f"n={n} grid points per side;", "an even number from 16 to 8192 was expected.", "Change n."
        )
    if seed < 0:
        raise ParameterError(f"seed={seed};", "an integer >= 0 was expected.", "Use 0.")
    for name, value in (("viscosity", viscosity), ("drag", drag)):
        if not (math.isfinite(value) and value >= 0):
            raise ParameterError(f"{name}={value};", "a finite number >= 0 was expected.", "Use 1e-3.")
