"""Where frames come from: a built-in simulation, or the time axis of a file or store.

A source yields snapshots in order, tells what the stored result will look like, and can go on after any snapshot
from a saved state, so that an interrupted run need not begin again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs.predictors import PredictorSpec
from headrace.storage.errors import ParameterError
from headrace.storage.provenance import fingerprint
from headrace.tasks.insitu.gates import Frame
from headrace.tasks.simulate import SIMULATIONS

if TYPE_CHECKING:
    import xarray as xr

_log = logging.getLogger(__name__)

#: Metrics watched by default: what is conserved, decays or bursts in the built-in flows, else plain statistics.
DEFAULT_METRICS = {"kolmogorov-forced": ("enstrophy",), "kolmogorov-decaying": ("enstrophy",), "kdv": ("roughness",)}
FILE_METRICS = ("rms",)
#: Most bytes of a variable read at once, where a file's chunks span many frames.
WINDOW_BYTES = 64 * 2**20
#: Frames of a built-in simulation, which has no end of its own.
DEFAULT_FRAMES = 600


@dataclass(frozen=True)
class Snapshot:
    """One frame offered: its number, its time, and its fields by name, time axis removed."""

    index: int
    time: float
    fields: Frame


class Source(Protocol):
    """What the stream asks of a source."""

    name: str
    variables: tuple[str, ...]
    time_dim: str
    frames: int
    inputs: dict[str, str]

    @property
    def seconds(self) -> float:
        """CPU seconds taken to make or read the frames so far."""

    @property
    def template(self) -> xr.Dataset:
        """Dataset with a time axis of length 0 that declares variables (time first), coordinates and attributes."""

    def snapshots(self, state: Mapping[str, NDArray[Any]] | None = None) -> Iterator[Snapshot]:
        """Yield the snapshots, or those after the one at which ``state`` was taken."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Arrays from which ``snapshots`` goes on after the last snapshot yielded."""

    def along_time(self, kept: Sequence[int], times: Sequence[float]) -> dict[str, NDArray[Any]]:
        """Values of everything that lies along time and is not compressed, at the kept frames."""


class SimulationSource:
    """A built-in simulation, run for a number of frames.

    Parameters
    ----------
    name : one of ``SIMULATIONS``
    frames : snapshots to take, >= 1
    grid : grid points per side, None for the simulation's default
    interval : time between snapshots [s], None for the simulation's default
    seed : of the initial field
    variables : variables to keep, None for all

    Raises
    ------
    ParameterError -- a value is out of range, or a variable unknown
    """

    time_dim = "time"

    def __init__(
        self,
        name: str,
        *,
        frames: int = DEFAULT_FRAMES,
        grid: int | None = None,
        interval: float | None = None,
        seed: int = 0,
        variables: Sequence[str] | None = None,
    ) -> None:
        options = {"n": grid, "interval": interval, "seed": seed}
        factory: Any = SIMULATIONS[name]
        self.simulation = factory(**{key: value for key, value in options.items() if value is not None})
        self.name, self.frames = name, frames
        self._template = self.simulation.template()
        known = [str(each) for each in self._template.data_vars]
        self.variables = tuple(variables or known)
        unknown = sorted(set(self.variables) - set(known))
        if unknown:
            raise ParameterError(f"variable {unknown[0]!r} is not in {name}; expected {', '.join(known)}; correct it")
        self.inputs: dict[str, str] = {"simulation": name}
        self.left_out = tuple(each for each in known if each not in self.variables)

    @property
    def template(self) -> xr.Dataset:
        """The chosen variables with a time axis of length 0."""
        return self._template[list(self.variables)]

    def predictors(self) -> tuple[PredictorSpec, ...]:
        """Ways to predict a frame from the one before."""
        known = self.simulation.predictors()
        return tuple(PredictorSpec.of(kind, name, **parameters) for kind, (name, parameters) in known.items())

    @property
    def seconds(self) -> float:
        """CPU seconds the solver has taken so far."""
        return float(self.simulation.stepper_seconds)

    def snapshots(self, state: Mapping[str, NDArray[Any]] | None = None) -> Iterator[Snapshot]:
        """Yield ``frames`` snapshots in all, counted from the start of the simulation."""
        first = 0 if state is None else int(state["index"]) + 1
        stream = self.simulation.snapshots(None if state is None else dict(state))
        for _ in range(first, self.frames):  # not zip(): it would take, and compute, one snapshot too many
            index, moment, fields = next(stream)
            yield Snapshot(index, moment, {name: fields[name] for name in self.variables})

    def state(self) -> dict[str, NDArray[Any]]:
        """State of the solver after the last snapshot."""
        state: dict[str, NDArray[Any]] = self.simulation.state()
        return state

    def along_time(self, kept: Sequence[int], times: Sequence[float]) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        """The time coordinate."""
        return {self.time_dim: np.asarray(times, np.float64)}


class FileSource:
    """Variables along the time axis of a NetCDF or HDF5 file or a Zarr store.

    Parameters
    ----------
    path : file or store
    variables : names, None for every numeric variable with a time axis
    time_dim : name of the time dimension, None to find it
    group : group inside the file
    frames : most frames to take, None for all

    Raises
    ------
    SourceError, StoreError, ParameterError -- see ``headrace.storage.readers`` and ``headrace.storage.selection``
    """

    def __init__(
        self,
        path: Path,
        *,
        variables: Sequence[str] | None = None,
        time_dim: str | None = None,
        group: str | None = None,
        frames: int | None = None,
    ) -> None:
        from headrace.storage.readers import open_dataset
        from headrace.storage.selection import select, times_as_seconds

        opened = open_dataset(path, group)
        found = select(opened, variables, time_dim)
        _check_dimensions(found.dataset, found.variables)
        self.left_out = tuple(
            str(name) for name in opened.data_vars if name not in {*found.variables, *found.auxiliary}
        )
        if self.left_out and variables is None:
            _log.info("variables without numbers along %s are left out: %s", found.time_dim, ", ".join(self.left_out))
        self.time_dim, self.variables = found.time_dim, found.variables
        self.dataset = _with_dates(found.dataset)
        self.name = str(path)
        self.times = times_as_seconds(self.dataset, self.time_dim)
        available = int(self.dataset.sizes[self.time_dim])
        self.frames = available if frames is None else min(frames, available)
        self.inputs = {"source": fingerprint(path)}
        self._seconds = 0.0
        self.auxiliary = found.auxiliary
        self._next = 0

    @property
    def seconds(self) -> float:
        """CPU seconds taken to read frames so far."""
        return self._seconds

    @property
    def template(self) -> xr.Dataset:
        """The chosen variables with time first and of length 0, and what describes them."""
        names = [name for name in self.dataset.data_vars if name in {*self.variables, *self.auxiliary}]
        empty = self.dataset[names].isel({self.time_dim: slice(0, 0)})
        return empty.transpose(self.time_dim, ..., missing_dims="ignore")

    def snapshots(self, state: Mapping[str, NDArray[Any]] | None = None) -> Iterator[Snapshot]:
        """Read the frames in order."""
        self._next = 0 if state is None else int(state["next"])
        windows: dict[str, tuple[int, NDArray[Any]]] = {}
        while self._next < self.frames:
            begin = time.process_time()
            index = self._next
            fields = {name: self._frame(name, index, windows) for name in self.variables}
            self._seconds += time.process_time() - begin
            self._next += 1
            yield Snapshot(index, float(self.times[index]), fields)

    def _frame(self, name: str, index: int, windows: dict[str, tuple[int, NDArray[Any]]]) -> NDArray[Any]:
        """Take one frame from the window of frames read last, which follows the chunks of the file along time."""
        from headrace.storage.readers import load

        variable = self.dataset[name]
        start, frames = windows.get(name, (0, np.empty(0)))
        if not start <= index < start + len(frames):
            stored = int(variable.encoding.get("preferred_chunks", {}).get(self.time_dim, 1))
            length = min(stored, max(1, WINDOW_BYTES // max(1, variable.nbytes // len(self.times))))
            start = index - index % length
            frames = load(variable.isel({self.time_dim: slice(start, min(start + length, self.frames))}))
            frames = np.moveaxis(frames, variable.dims.index(self.time_dim), 0)
            windows[name] = (start, frames)
        return np.array(frames[index - start])

    def predictors(self) -> tuple[PredictorSpec, ...]:
        """None: a file does not say how its frames came about."""
        return ()

    def state(self) -> dict[str, NDArray[Any]]:
        """The number of the next frame."""
        return {"next": np.asarray(self._next)}

    def along_time(self, kept: Sequence[int], times: Sequence[float]) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        """Time, its bounds, and whatever else the file has along time, in the file's own units."""
        chosen = self.dataset.isel({self.time_dim: list(kept)})
        template = self.template
        names = [name for name in template.variables if self.time_dim in template[name].dims]
        aside = {str(name) for name in names if name not in self.variables}
        return {name: chosen[name].transpose(self.time_dim, ...).values for name in sorted(aside)}


def _check_dimensions(dataset: xr.Dataset, variables: Sequence[str]) -> None:
    for name in variables:
        dims, shape = dataset[name].dims, dataset[name].shape
        if len(set(dims)) < len(dims) or 0 in shape:
            raise ParameterError(
                f"variable {name!r} has dimensions {dims} of lengths {shape}; expected different names and at "
                "least one point along each; leave it out, or rename its dimensions"
            )


def _with_dates(dataset: xr.Dataset) -> xr.Dataset:
    """Read the dates now: an empty slice of calendar dates that are still on the disk cannot be decoded."""
    dates = {name: variable.load() for name, variable in dataset.variables.items() if variable.dtype.kind in "MmO"}
    coords = {name: variable for name, variable in dates.items() if name in dataset.coords}
    return dataset.assign_coords(coords).assign({n: v for n, v in dates.items() if n not in coords})


def open_source(
    source: str,
    *,
    variables: Sequence[str] | None = None,
    frames: int | None = None,
    grid: int | None = None,
    interval: float | None = None,
    seed: int = 0,
    time_dim: str | None = None,
    group: str | None = None,
) -> SimulationSource | FileSource:
    """Open the source a user named: a built-in simulation, or else a path.

    Parameters
    ----------
    source : name of a simulation, or path of a file or store
    variables, frames : what to take of it, None for all (simulations: ``DEFAULT_FRAMES``)
    grid, interval, seed : of simulations only
    time_dim, group : of files only

    Returns
    -------
    SimulationSource or FileSource

    Raises
    ------
    SourceError -- neither a simulation nor an existing path
    ParameterError -- an option that does not fit the source
    """
    if source in SIMULATIONS:
        _refuse(source, "a simulation", time_dim=time_dim, group=group)
        count = DEFAULT_FRAMES if frames is None else frames
        return SimulationSource(source, frames=count, grid=grid, interval=interval, seed=seed, variables=variables)
    _refuse(source, "a file", grid=grid, interval=interval)
    return FileSource(
        Path(source).expanduser().absolute(), variables=variables, time_dim=time_dim, group=group, frames=frames
    )


def _refuse(source: str, kind: str, **options: object) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ParameterError(
            f"{given[0]}={options[given[0]]!r} does not apply to {source!r}, which is {kind}; leave it out "
            f"(built-in simulations: {', '.join(SIMULATIONS)})"
        )
