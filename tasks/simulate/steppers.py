"""The built-in solvers as predictors of compressed frames, registered in the entry point group ``headrace.steppers``.

A solver-predicted frame is what the solver makes of the decoded frame before it; often nothing else has to be stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.errors import ParameterError

if TYPE_CHECKING:
    from headrace.tasks.simulate.stepping import SpectralSimulation


class SolverStepper:
    """Advances a decoded frame by a simulation's own time step.

    Parameters
    ----------
    simulation : whose present state is replaced at every call
    """

    def __init__(self, simulation: SpectralSimulation) -> None:
        self.simulation = simulation

    def advance(self, previous: NDArray[Any], t_previous: float, t: float) -> NDArray[Any]:
        """Advance a frame.

        Parameters
        ----------
        previous : array, shape of a snapshot -- field at ``t_previous``
        t_previous, t : times [s], apart by a whole number of the simulation's steps, up to rounding

        Returns
        -------
        array like ``previous``; not finite where the scheme is unstable, or where no whole number of steps fits
        """
        steps = (t - t_previous) / self.simulation.dt
        if not (steps > 0 and abs(steps - round(steps)) < 1e-6 * max(1.0, steps)):
            return np.full_like(previous, np.nan)
        return self.simulation.advance(previous, round(steps)).astype(previous.dtype)


def kolmogorov(parameters: Mapping[str, Any]) -> SolverStepper:
    """Make a stepper of Kolmogorov flow.

    Parameters
    ----------
    parameters : ``n``, ``forced``, ``interval``, ``viscosity``, ``drag`` as of ``KolmogorovFlow``

    Raises
    ------
    ParameterError -- an unknown parameter, or a value out of range
    """
    from headrace.tasks.simulate.kolmogorov import KolmogorovFlow

    return SolverStepper(KolmogorovFlow(**_only(parameters, "n", "forced", "interval", "viscosity", "drag")))


def kdv(parameters: Mapping[str, Any]) -> SolverStepper:
    """Make a stepper of the Korteweg-de Vries equation.

    Parameters
    ----------
    parameters : ``n``, ``interval`` as of ``KdVSolitons``

    Raises
    ------
    ParameterError -- an unknown parameter, or a value out of range
    """
    from headrace.tasks.simulate.kdv import KdVSolitons

    return SolverStepper(KdVSolitons(**_only(parameters, "n", "interval")))


def _only(parameters: Mapping[str, Any], *known: str) -> dict[str, Any]:
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ParameterError(f"stepper parameter {unknown[0]!r} is unknown; expected some of {', '.join(known)}")
    return dict(parameters)
