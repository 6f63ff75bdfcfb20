"""What the built-in simulations share: stepping a spectrum, yielding snapshots, saving and restoring the state."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.errors import ConvergenceError, ParameterError, ShapeError

if TYPE_CHECKING:
    import xarray as xr

Spectrum = NDArray[np.complex128]


class SpectralSimulation(ABC):
    """A simulation whose whole state is one array of Fourier coefficients.

    Parameters
    ----------
    interval : time between snapshots [s], > 0.
    longest_step : upper limit of the internal time step [s]; the step taken is ``interval / ceil(interval / limit)``.

    Attributes
    ----------
    dt : internal time step [s]
    steps_per_snapshot : internal steps between snapshots
    stepper_seconds : CPU seconds spent stepping so far, without the making of snapshots
    """

    _spectrum: Spectrum

    def __init__(self, interval: float, longest_step: float) -> None:
        if not (math.isfinite(interval) and interval > 0):
            raise ParameterError(f"interval={interval} s between snapshots;", "a number > 0 was expected.", "Try 0.05.")
        self.interval = float(interval)
        self.steps_per_snapshot = max(1, math.ceil(interval / longest_step - 1e-9))
        self.dt = interval / self.steps_per_snapshot
        self.stepper_seconds = 0.0
        self._index = -1  # of the last snapshot yielded

    @abstractmethod
    def template(self) -> xr.Dataset:
        """Dataset with a zero-length time axis that declares what the snapshots are."""

    @abstractmethod
    def _step(self) -> None:
        """Advance the spectrum by dt."""

    @abstractmethod
    def _snapshot(self) -> dict[str, NDArray[Any]]:
        """The fields of the present state, in fresh float32 arrays."""

    def snapshots(
        self, state: dict[str, NDArray[Any]] | None = None
    ) -> Iterator[tuple[int, float, dict[str, NDArray[Any]]]]:
        """Yield ``(index, time, fields)`` without end; snapshot 0 is the initial field.

        Parameters
        ----------
        state : what ``state()`` returned after some snapshot; the next one yielded is the one after it, and all that
            follow equal those of an uninterrupted run bit for bit. None: go on from where this object stands, which is
            the beginning for a new one.

        Returns
        -------
        iterator of (int, float [s], dict of name to array float32); each array is a fresh one

        Raises
        ------
        ConvergenceError -- the fields left the finite numbers (names step and time).
        ShapeError -- the state belongs to another grid.
        """
        if state is not None:
            self._restore(state)
        if self._index < 0:
            self._index = 0
            yield 0, 0.0, self._snapshot()
        while True:
            self._advance()
            yield self._index, self._index * self.interval, self._snapshot()

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything needed to continue after the last snapshot yielded, bit for bit."""
        return {"spectrum": self._spectrum.copy(), "index": np.asarray(self._index, dtype=np.int64)}

    @abstractmethod
    def _from_field(self, field: NDArray[Any]) -> Spectrum:
        """Spectrum of a field on the grid, truncated as the scheme does."""

    def advance(self, field: NDArray[Any], steps: int) -> NDArray[Any]:
        """Take a number of internal steps from a field; the present state is lost.

        Parameters
        ----------
        field : array, shape of a snapshot
        steps : >= 1, each of ``dt``

        Returns
        -------
        array, shape of a snapshot, float32; not finite where the scheme is unstable
        """
        self._spectrum = self._from_field(field)
        for _ in range(steps):
            self._step()
        (snapshot,) = self._snapshot().values()
        return snapshot

    @abstractmethod
    def predictors(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Steppers of the entry point group ``headrace.steppers`` that predict a snapshot from the one before.

        Returns
        -------
        dict of record kind (S: the solver itself, A: the field moved with the flow) to name and JSON parameters
        """

    def _restore(self, state: dict[str, NDArray[Any]]) -> None:
        spectrum = np.array(state["spectrum"], dtype=np.complex128)
        if spectrum.shape != self._spectrum.shape:
            raise ShapeError(
                f"the saved state has a spectrum of shape {spectrum.shape};",
                f"{self._spectrum.shape} was expected.",
                "Resume with the parameters of the run that saved it.",
            )
        self._spectrum, self._index = spectrum, int(state["index"])

    def _advance(self) -> None:
        begin = time.thread_time()
        for _ in range(self.steps_per_snapshot):
            self._step()
        self._index += 1
        self.stepper_seconds += time.thread_time() - begin
        if not np.isfinite(self._spectrum.view(np.float64)).all():
            raise ConvergenceError(
                f"{type(self).__name__} is not finite at step {self._index * self.steps_per_snapshot},",
                f"t={self._index * self.interval:g} s; a stable run was expected.",
                "Use a shorter snapshot interval or more grid points.",
            )
