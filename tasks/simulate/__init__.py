"""Small simulations that yield snapshots.

``SIMULATIONS`` maps a name to a factory ``(n, interval, seed) -> simulation``. A simulation has ``template()``,
``snapshots(state=None)``, ``state()`` and ``stepper_seconds`` (see ``headrace.tasks.simulate.stepping``). The solvers
are imported when a factory is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.tasks.simulate.stepping import SpectralSimulation


def forced_kolmogorov(n: int = 256, interval: float = 0.025, seed: int = 0) -> SpectralSimulation:
    """Two-dimensional turbulence kept going by a sinusoidal force (``KolmogorovFlow``)."""
    from headrace.tasks.simulate.kolmogorov import KolmogorovFlow

    return KolmogorovFlow(n, forced=True, interval=interval, seed=seed)


def decaying_kolmogorov(n: int = 256, interval: float = 0.025, seed: int = 0) -> SpectralSimulation:
    """Two-dimensional turbulence left to itself (``KolmogorovFlow``)."""
    from headrace.tasks.simulate.kolmogorov import KolmogorovFlow

    return KolmogorovFlow(n, forced=False, interval=interval, seed=seed)


def kdv_solitons(n: int = 512, interval: float = 0.05, seed: int = 0) -> SpectralSimulation:
    """Two solitons of the Korteweg-de Vries equation (``KdVSolitons``)."""
    from headrace.tasks.simulate.kdv import KdVSolitons

    return KdVSolitons(n, interval=interval, seed=seed)


SIMULATIONS: dict[str, Callable[[int, float, int], SpectralSimulation]] = {
    "kolmogorov-forced": forced_kolmogorov,
    "kolmogorov-decaying": decaying_kolmogorov,
    "kdv": kdv_solitons,
}
