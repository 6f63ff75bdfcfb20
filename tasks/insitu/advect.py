"""Advected prediction: the frame before, moved with the flow to the new time.

For two-dimensional vorticity on a periodic square the velocity follows from the field itself by inverting the
Laplacian. Each sub-step traces every grid point back with a second-order Runge-Kutta step and interpolates there
(semi-Lagrangian advection; Staniforth & Cote, Mon. Wea. Rev. 119, 1991), then adds a steady forcing and applies linear
damping exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.errors import ParameterError

#: Largest displacement in a sub-step, in cells.
MOST_CELLS = 3.0
#: Most sub-steps of one prediction; frames further apart are not predicted.
MOST_SUBSTEPS = 256


class AdvectedVorticity:
    """Predicts two-dimensional vorticity on a periodic square.

    Parameters
    ----------
    length : side of the square [m]
    viscosity, drag : of the damping ``exp(-(viscosity k^2 + drag) dt)`` [m2 s-1], [s-1]
    forcing, forcing_wavenumber : ``curl f = -forcing cos(forcing_wavenumber y)`` is added [s-2]

    Raises
    ------
    ParameterError -- a value that is not finite, or a length that is not positive
    """

    def __init__(
        self,
        length: float = 2 * math.pi,
        viscosity: float = 0.0,
        drag: float = 0.0,
        forcing: float = 0.0,
        forcing_wavenumber: int = 0,
    ) -> None:
        values = (length, viscosity, drag, forcing, forcing_wavenumber)
        if not all(map(math.isfinite, values)) or length <= 0:
            raise ParameterError(f"advected prediction got {values}; expected finite numbers and a length > 0")
        self.length, self.viscosity, self.drag = length, viscosity, drag
        self.forcing, self.forcing_wavenumber = forcing, forcing_wavenumber
        self._grids: dict[tuple[int, ...], _Grid] = {}

    def advance(self, previous: NDArray[Any], t_previous: float, t: float) -> NDArray[Any]:
        """Move a frame.

        Parameters
        ----------
        previous : array, shape (n, n), axes (y, x) -- vorticity at ``t_previous`` [s-1]
        t_previous, t : times [s]

        Returns
        -------
        array like ``previous``; NaN where the flow moves too far in the interval to be followed
        """
        if previous.ndim != 2 or previous.shape[0] != previous.shape[1]:
            raise ParameterError(f"advected vorticity has shape {previous.shape}, expected a square (n, n)")
        grid = self._grids.setdefault(previous.shape, _Grid(len(previous), self.length))
        w = previous.astype(np.float64)
        fastest = float(np.sqrt(np.sum(np.square(grid.velocity(w)), axis=0).max()))
        cells = fastest * (t - t_previous) / grid.spacing
        steps = math.ceil(cells / MOST_CELLS) if math.isfinite(cells) else MOST_SUBSTEPS + 1
        if steps > MOST_SUBSTEPS:
            return np.full_like(previous, np.nan)
        steps = max(1, steps)
        dt = (t - t_previous) / steps
        damping = np.exp(-(self.viscosity * grid.k2 + self.drag) * dt)
        forcing = -self.forcing * np.cos(self.forcing_wavenumber * grid.axis)[:, None]
        for _ in range(steps):
            w = self._substep(grid, w, dt)
            if self.viscosity or self.drag or self.forcing:
                w = np.fft.irfft2(np.fft.rfft2(w + dt * forcing) * damping, s=w.shape)
        return w.astype(previous.dtype)

    def _substep(self, grid: _Grid, w: NDArray[np.float64], dt: float) -> NDArray[np.float64]:
        from scipy.ndimage import map_coordinates

        def at(field: NDArray[np.float64], moved: NDArray[np.float64], order: int) -> NDArray[np.float64]:
            values: NDArray[np.float64] = map_coordinates(field, grid.points - moved, order=order, mode="grid-wrap")
            return values

        velocity = grid.velocity(w)[::-1]  # in the order of the axes: y, x
        half = velocity * (dt / 2 / grid.spacing)
        middle = np.stack([at(part, half, 3) for part in velocity])
        return at(w, middle * (dt / grid.spacing), 5)


class _Grid:
    """Points and wavenumbers of an n x n periodic square."""

    def __init__(self, n: int, length: float) -> None:
        self.n, self.spacing, self.length = n, length / n, length

    @cached_property
    def axis(self) -> NDArray[np.float64]:
        return np.asarray(np.arange(self.n) * self.spacing, np.float64)

    @cached_property
    def points(self) -> NDArray[np.float64]:
        return np.stack(np.meshgrid(np.arange(self.n), np.arange(self.n), indexing="ij")).astype(np.float64)

    @cached_property
    def wavenumbers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        unit = 2 * math.pi / self.length
        ky = np.fft.fftfreq(self.n, 1 / self.n)[:, None] * unit
        kx = np.fft.rfftfreq(self.n, 1 / self.n)[None, :] * unit
        return np.asarray(ky, np.float64), np.asarray(kx, np.float64)

    @cached_property
    def k2(self) -> NDArray[np.float64]:
        ky, kx = self.wavenumbers
        return np.asarray(kx * kx + ky * ky)

    def velocity(self, w: NDArray[np.float64]) -> NDArray[np.float64]:
        """Velocity (u, v) [m s-1] of a vorticity field, from the stream function."""
        ky, kx = self.wavenumbers
        stream = np.fft.rfft2(w) / np.where(self.k2 > 0, self.k2, 1.0)
        stream[0, 0] = 0.0
        return np.asarray(np.fft.irfft2(np.stack([1j * ky * stream, -1j * kx * stream]), s=w.shape), np.float64)


def advected_vorticity(parameters: Mapping[str, Any]) -> AdvectedVorticity:
    """Make the predictor from JSON parameters, as the entry point ``advected-vorticity`` does.

    Raises
    ------
    ParameterError -- an unknown parameter, or a value out of range
    """
    try:
        return AdvectedVorticity(**parameters)
    except TypeError as error:
        raise ParameterError(f"parameters of advected prediction do not fit: {error}") from error
