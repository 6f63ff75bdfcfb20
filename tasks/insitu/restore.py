"""Decode a compressed store, or a part of it, into an ordinary NetCDF, HDF5 or Zarr file."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.storage.errors import ParameterError, SourceError, StoreError

if TYPE_CHECKING:
    import xarray as xr

_log = logging.getLogger(__name__)
_WHOLE = r"[+-]?\d+"
_DATE = r"[+-]?\d{4,}-\d\d(?:-\d\d(?:[T ]\d\d(?::\d\d(?::\d\d(?:\.\d+)?)?)?)?)?"
_LABEL = rf"(?:{_DATE}|[^:]*)"
_POSITIONS = re.compile(rf"(?P<start>{_WHOLE})?:(?P<stop>{_WHOLE})?(?::(?P<step>{_WHOLE})?)?")
_RANGE = re.compile(rf"(?P<first>{_LABEL}):(?P<last>{_LABEL})")
_FORMS = "a position (5, -1), positions (0:10, ::4), a value (0.5, 2001-02) or values (0.5:2.0, 2001-01:2002-06)"


@dataclass(frozen=True)
class RestoreJob:
    """What to restore.

    Attributes
    ----------
    store : path of a Zarr store that ``compress`` wrote
    to : target; its ending chooses the format (``headrace.storage.writers.write_dataset``)
    variables : names; None for every compressed one
    time : part of the time axis, as text (`cut`); None for all
    select : parts of other dimensions, text by dimension
    overwrite : replace the target if it is there
    """

    store: str
    to: str
    variables: tuple[str, ...] | None = None
    time: str | None = None
    select: Mapping[str, str] = field(default_factory=dict)
    overwrite: bool = False


@dataclass(frozen=True)
class RestoreResult:
    """What was restored.

    Attributes
    ----------
    bytes : size of the target
    frames : number of times in it
    variables : names of the restored variables
    ranges : per dimension that was cut, what was taken, in words
    """

    bytes: int
    frames: int
    variables: tuple[str, ...]
    ranges: Mapping[str, str] = field(default_factory=dict)


def restore(job: RestoreJob) -> RestoreResult:
    """Decode a store, chunk by chunk, and write it to a file; the target appears whole or not at all.

    Raises
    ------
    SourceError -- no store, variable or dimension of that name
    ParameterError -- a part that cannot be read as such, or selects nothing; a target of unknown ending
    RunExistsError -- the target exists
    StoreError -- a damaged chunk, or a target that cannot be written
    """
    from headrace.storage.writers import write_dataset

    part = choose(job)
    write_dataset(part.dataset, Path(job.to), overwrite=job.overwrite)
    for dim, text in part.ranges.items():
        _log.info("%s: %s", dim, text)
    return RestoreResult(_size(Path(job.to)), part.frames, part.variables, part.ranges)


@dataclass(frozen=True)
class Part:
    """A part of a store, not yet read.

    Attributes
    ----------
    dataset : lazy, in Dask blocks that are the store's chunks
    variables : names of the fields in it
    frames : number of times
    ranges : per dimension that was cut, what was taken, in words
    """

    dataset: xr.Dataset
    variables: tuple[str, ...]
    frames: int
    ranges: Mapping[str, str]


def choose(job: RestoreJob) -> Part:
    """Find the part of the store that a job asks for, reading coordinates only.

    Raises
    ------
    SourceError, ParameterError, StoreError -- as `restore`
    """
    from headrace.storage.readers import open_dataset, select
    from headrace.storage.writers import blocked

    dataset = open_dataset(Path(job.store))
    compressed = [str(name) for name, variable in dataset.data_vars.items() if "headrace_bound" in variable.attrs]
    dim = str(dataset[compressed[0]].dims[0]) if compressed else None
    found = select(blocked(dataset), job.variables or compressed or None, dim)
    parts = dict(job.select)
    if job.time is not None:
        if found.time_dim in parts:
            raise ParameterError(
                f"two parts of {found.time_dim!r}: {job.time!r} and {parts[found.time_dim]!r}; give one"
            )
        parts[found.time_dim] = job.time
    unknown = sorted(set(parts) - set(map(str, found.dataset.dims)))
    if unknown:
        there = ", ".join(f"{name} ({size})" for name, size in found.dataset.sizes.items())
        raise SourceError(f"no dimension {unknown[0]!r}; expected one of: {there}; correct the name")
    cuts = {name: cut(found.dataset, name, text) for name, text in parts.items()}
    part = found.dataset.isel(cuts)
    _check_chunks(Path(job.store), found.variables)
    ranges = {name: _describe(part, name) for name in cuts}
    return Part(part, found.variables, int(part.sizes[found.time_dim]), ranges)


def _check_chunks(store: Path, variables: Sequence[str]) -> None:
    """Refuse a store that lacks chunks of compressed arrays: Zarr would return fill values for them."""
    from headrace.storage.arrays import missing_chunks

    for name in variables:
        lost = missing_chunks(store, name) if (store / name / "zarr.json").is_file() else []
        if lost:
            raise StoreError(
                f"array {name!r} in {store} lacks {len(lost)} chunks (the first is {'/'.join(map(str, lost[0]))}); "
                "expected all of them; restore them from a copy, or run compress again with --fresh"
            )


def cut(ds: xr.Dataset, dim: str, text: str) -> slice | np.ndarray:
    """Turn a part of a dimension, given as text, into positions.

    Whole numbers are positions and everything else is a value of the coordinate, as in the NCO tools: ``5`` is the
    sixth, ``5.0`` the one nearest to five. Of positions, ``a:b`` leaves ``b`` out, as in Python, and a third number is
    the step. Of values, both ends belong to it, an end may be left out, and dates may be short: ``2001-02`` is the
    whole month. On an axis of text a range goes from one label to the other.

    Parameters
    ----------
    ds : dataset with the dimension
    dim : name of the dimension
    text : the part

    Returns
    -------
    slice, or array of positions where the values chosen do not lie side by side

    Raises
    ------
    ParameterError -- unreadable, a value where there is no coordinate, or nothing selected
    """
    text = text.strip()
    size = int(ds.sizes[dim])
    if re.fullmatch(_WHOLE, text):
        position = int(text)
        if not -size <= position < size:
            raise ParameterError(
                f"position {position} of {dim!r} is outside; expected {-size} to {size - 1}; write a value with a "
                "decimal point, a month as 2001-01"
            )
        return slice(position % size, position % size + 1)
    found = _POSITIONS.fullmatch(text)
    if found:
        start, stop, step = (None if part is None else int(part) for part in found.group("start", "stop", "step"))
        if step is not None and step < 1:
            raise ParameterError(f"step {step} of {dim!r} is not positive; expected 1 or more; correct {text!r}")
        return _filled(ds, dim, text, np.arange(size)[start:stop:step])
    if dim not in ds.indexes:
        raise ParameterError(
            f"{dim!r} has no coordinate to find {text!r} on; expected positions 0 to {size - 1}; give these"
        )
    try:
        return _filled(ds, dim, text, _by_value(ds, dim, text))
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(
            f"part {text!r} of {dim!r} cannot be read ({error}); expected {_FORMS}; correct it"
        ) from error


def _by_value(ds: xr.Dataset, dim: str, text: str) -> np.ndarray:
    """Positions of a value or a range of values."""
    values = ds[dim].values
    found = None if re.fullmatch(_DATE, text) else _RANGE.fullmatch(text)
    first, last = (part.strip() or None for part in found.group("first", "last")) if found else (text, text)
    if values.dtype.kind in "iuf":
        return _by_number(values, first, last, single=found is None)
    if values.dtype.kind == "M" or hasattr(values.flat[0], "calendar"):
        part = ds.indexes[dim].slice_indexer(first, last)
        return np.arange(len(values))[part]
    texts = [str(value) for value in values]
    start = 0 if first is None else texts.index(first)
    stop = len(texts) - 1 if last is None else texts.index(last)
    return np.arange(start, stop + 1)


def _by_number(values: np.ndarray, first: str | None, last: str | None, *, single: bool) -> np.ndarray:
    if single:
        wanted = float(first or "nan")
        steps = np.abs(np.diff(values)) if len(values) > 1 else np.array([np.inf])
        distance = np.abs(values.astype(np.float64) - wanted)
        near = distance.argmin()
        return np.array([near] if distance[near] <= steps.max() / 2 or distance[near] == 0 else [], np.intp)
    low = -np.inf if first is None else float(first)
    high = np.inf if last is None else float(last)
    return np.flatnonzero((values >= min(low, high)) & (values <= max(low, high)))


def _filled(ds: xr.Dataset, dim: str, text: str, positions: np.ndarray) -> slice | np.ndarray:
    """Positions as a slice where they are side by side; not none."""
    if not len(positions):
        there = f"positions 0 to {ds.sizes[dim] - 1}"
        if dim in ds.indexes:
            values = ds[dim].values
            there += f", values {values[0]} to {values[-1]}"
        raise ParameterError(f"part {text!r} of {dim!r} selects nothing; expected something within {there}; widen it")
    steps = np.unique(np.diff(positions))
    if len(steps) <= 1:
        return slice(int(positions[0]), int(positions[-1]) + 1, int(steps[0]) if len(steps) else 1)
    return positions


def _describe(ds: xr.Dataset, dim: str) -> str:
    size = ds.sizes[dim]
    if dim not in ds.coords:
        return f"{size} positions"
    first, last = (f"{value:g}" if isinstance(value, np.floating) else str(value) for value in ds[dim].values[[0, -1]])
    return first if size == 1 else f"{first} to {last} ({size})"


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
