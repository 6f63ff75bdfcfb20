"""Choose variables and the time axis of a dataset, and say clearly why that is not possible."""

import difflib
import logging
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.storage.errors import ParameterError, SourceError

if TYPE_CHECKING:
    import xarray as xr

_log = logging.getLogger(__name__)
TIME_NAMES = frozenset({"time", "t", "times", "time_counter", "date", "datetime", "ocean_time", "xtime", "valid_time"})
_LINKS = (
    "bounds",
    "climatology",
    "grid_mapping",
    "ancillary_variables",
    "cell_measures",
    "formula_terms",
    "coordinates",
)
_LARGE = 4096  # values per frame above which a companion variable is a field of its own


@dataclass(frozen=True)
class Selection:
    """What to work on.

    Attributes
    ----------
    dataset : the chosen variables, time as their first dimension (of length 1 where the source has one time only), with
        their coordinates and companions; lazy
    variables : names of the chosen variables
    time_dim : name of the time dimension
    auxiliary : names of the companions: bounds, grid mappings and the like, to be copied as they are
    """

    dataset: "xr.Dataset"
    variables: tuple[str, ...]
    time_dim: str
    auxiliary: tuple[str, ...]


def select(ds: "xr.Dataset", variables: Sequence[str] | None = None, time_dim: str | None = None) -> Selection:
    """Choose variables by name, and the time axis by name or by what the dataset says of it.

    By default every numeric data variable with the time dimension is chosen that is no bounds, grid mapping or other
    companion of another one. The time axis is found by CF attributes (axis, standard name), date values, or its name.
    A dataset with one scalar time and no time dimension gets one of length 1.

    Parameters
    ----------
    ds : a dataset as `headrace.storage.readers.open_dataset` gives it
    variables : names; None for the default
    time_dim : name of a dimension, of a one-dimensional coordinate along it, or of a scalar coordinate

    Raises
    ------
    SourceError -- an unknown variable (with the nearest names) or no time axis (with the dimensions there are)
    ParameterError -- a variable without numbers or without the time axis; times that are missing, repeated or not in
        order (with both times and their positions); no frame at all
    """
    chosen = _named_variables(ds, variables) if variables else None
    dim = find_time(ds, time_dim, chosen)
    companions = _companions(ds)
    if chosen is None:
        scalar = dim not in ds.dims
        chosen = [
            str(name)
            for name, variable in ds.data_vars.items()
            if variable.dtype.kind in "biufc"
            and name not in companions
            and (dim in variable.dims or (scalar and variable.ndim))
        ]
    _check_variables(ds, chosen, dim)
    auxiliary = _auxiliary(ds, chosen, dim)
    kept = ds.reset_coords([name for name in chosen if name in ds.coords])[[*chosen, *auxiliary]]
    made = _with_time_first(kept, chosen, dim)
    if not made.sizes[dim]:
        raise ParameterError(f"dimension {dim!r} has length 0; expected at least one frame; check the input")
    times_as_seconds(made, dim)
    return Selection(made, tuple(chosen), dim, tuple(auxiliary))


def _nearest(name: str, names: Iterable[Hashable]) -> str:
    there = sorted(map(str, names))
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "choose one of them"


def _named_variables(ds: "xr.Dataset", names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in ds.variables:
            there = ", ".join(map(str, ds.data_vars)) or "none"
            raise SourceError(f"no variable {name!r}; expected one of: {there}; {_nearest(name, ds.variables)}")
    return list(dict.fromkeys(names))


def _check_variables(ds: "xr.Dataset", chosen: Sequence[str], dim: str) -> None:
    if not chosen:
        found = (
            ", ".join(f"{name} {variable.dims} {variable.dtype}" for name, variable in ds.data_vars.items()) or "none"
        )
        raise SourceError(
            f"no variable of numbers with dimension {dim!r}; there are: {found}; expected at least one; name it, "
            "or name another dimension with --time-dim"
        )
    for name in chosen:
        if ds[name].dtype.kind not in "biufc":
            raise ParameterError(
                f"variable {name!r} has dtype {ds[name].dtype}; expected numbers; choose other variables"
            )
        if dim in ds.dims and dim not in ds[name].dims:
            raise ParameterError(
                f"variable {name!r} has dimensions {ds[name].dims}; expected {dim!r} among them; leave it out, or name "
                "another dimension with --time-dim"
            )


def _linked(variable: "xr.DataArray | xr.Variable") -> set[str]:
    """Names that the attributes of a variable refer to."""
    texts = [str(where[link]) for where in (variable.attrs, variable.encoding) for link in _LINKS if link in where]
    return {word for text in texts for word in text.split() if not word.endswith(":")}


def _companions(ds: "xr.Dataset") -> set[str]:
    """Names of all variables that serve another one."""
    return {name for key, variable in ds.variables.items() for name in _linked(variable) if name != key}


def _auxiliary(ds: "xr.Dataset", chosen: Sequence[str], dim: str) -> list[str]:
    """Companions of the chosen variables and of their coordinates, those that are small."""
    wanted: dict[str, None] = {}
    todo = [ds[name] for name in chosen]
    while todo:
        array = todo.pop()
        for name in sorted(_linked(array.variable)) + [str(coord) for coord in array.coords if coord != array.name]:
            if name in ds.variables and name not in wanted and name not in chosen:
                wanted[name] = None
                todo.append(ds[name])
    made = []
    for name in wanted:
        variable = ds[name]
        if name not in ds.data_vars:
            continue
        if dim in variable.dims and variable.size > _LARGE * variable.sizes[dim]:
            _log.warning("%s is left out: a companion with many values per frame; name it to keep it", name)
            continue
        made.append(name)
    return sorted(made)


def _with_time_first(ds: "xr.Dataset", chosen: Sequence[str], dim: str) -> "xr.Dataset":
    from headrace.storage.lazy import with_leading

    if dim not in ds.dims and dim in ds.coords:
        line = ds[dim].variable.set_dims((dim,))
        line.encoding = ds[dim].encoding
        ds = ds.drop_vars(dim).assign_coords({dim: line})
    return ds.assign({name: with_leading(ds[name].variable, dim) for name in chosen})


def find_time(ds: "xr.Dataset", name: str | None = None, chosen: Sequence[str] | None = None) -> str:
    """Name of the time dimension, or of a scalar coordinate that can become one.

    Raises
    ------
    SourceError -- there is none; lists the dimensions
    """
    if name is not None:
        if name in ds.dims or (name in ds.variables and ds[name].ndim == 0):
            return name
        if name in ds.variables and ds[name].ndim == 1:
            return str(ds[name].dims[0])
        raise SourceError(f"no dimension {name!r}; expected one of: {_sizes(ds)}; {_nearest(name, ds.dims)}")
    arrays = [ds[key] for key in chosen] if chosen else list(ds.data_vars.values())
    numeric = [array for array in arrays if array.dtype.kind in "biufc"]
    for rank in (_is_time_by_attributes, _holds_dates, _is_time_by_name):
        fitting = [str(dim) for array in numeric for dim in array.dims if any(rank(ds, key) for key in _along(ds, dim))]
        if fitting:
            return max(dict.fromkeys(fitting), key=fitting.count)
    scalars = [str(key) for key, variable in ds.variables.items() if variable.ndim == 0]
    for rank in (_is_time_by_attributes, _is_time_by_name):
        fitting = [key for key in scalars if rank(ds, key)]
        if fitting:
            return fitting[0]
    raise SourceError(
        f"no time axis among the dimensions {_sizes(ds)}; expected one; name the axis of frames with --time-dim"
    )


def _sizes(ds: "xr.Dataset") -> str:
    return ", ".join(f"{dim} ({size})" for dim, size in ds.sizes.items()) or "none"


def _along(ds: "xr.Dataset", dim: Hashable) -> list[str]:
    """The dimension itself and every one-dimensional variable along it."""
    lines = [str(key) for key, variable in ds.variables.items() if variable.dims == (dim,) and key != dim]
    return [str(dim), *lines]


def _is_time_by_attributes(ds: "xr.Dataset", name: str) -> bool:
    attrs = ds[name].attrs if name in ds.variables else {}
    return attrs.get("axis") == "T" or attrs.get("standard_name") == "time"


def _holds_dates(ds: "xr.Dataset", name: str) -> bool:
    if name not in ds.variables:
        return False
    variable = ds.variables[name]
    if variable.dtype.kind == "O" and variable.size:
        return hasattr(variable[(0,) * variable.ndim].values.item(), "calendar")
    return variable.dtype.kind == "M" or " since " in str(variable.attrs.get("units", ""))


def _is_time_by_name(ds: "xr.Dataset", name: str) -> bool:
    return name.lower() in TIME_NAMES and (name in ds.dims or ds[name].ndim == 0)


def times_as_seconds(ds: "xr.Dataset", time_dim: str) -> np.ndarray:
    """Times of the frames as numbers.

    Returns
    -------
    array, shape (frames,), float64, strictly increasing: seconds since the first frame for dates, the coordinate's own
    numbers otherwise, positions where there is no coordinate or one of text

    Raises
    ------
    ParameterError -- a time is missing, repeated or before the one in front of it; names both and their positions
    """
    if time_dim not in ds.coords:
        return np.arange(ds.sizes[time_dim], dtype=np.float64)
    values = np.atleast_1d(ds[time_dim].values)
    numbers = _numbers(values)
    missing = np.flatnonzero(~np.isfinite(numbers))
    if missing.size:
        raise ParameterError(
            f"time {time_dim}[{missing[0]}] is {values[missing[0]]} ({missing.size} of {len(values)} are missing); "
            "expected a time for every frame; correct the times, or cut these frames off"
        )
    wrong = np.flatnonzero(np.diff(numbers) <= 0)
    if wrong.size:
        at = int(wrong[0])
        found = "repeated" if numbers[at] == numbers[at + 1] else "not in order"
        raise ParameterError(
            f"times are {found}: {time_dim}[{at}] = {values[at]} and {time_dim}[{at + 1}] = {values[at + 1]}; expected "
            "increasing times; sort or correct them"
        )
    return numbers


def _numbers(values: np.ndarray) -> np.ndarray:
    kind = values.dtype.kind
    if kind in "mM":
        missing = np.isnat(values)
        first = values[~missing][0] if (~missing).any() else values[0]
        return np.where(missing, np.nan, (values - first) / np.timedelta64(1, "s"))
    if kind in "biuf":
        return values.astype(np.float64)
    if kind == "O" and len(values) and all(hasattr(value, "calendar") for value in values):
        return np.array([(value - values[0]).total_seconds() for value in values], np.float64)
    if kind == "O" and any(hasattr(value, "calendar") for value in values):
        return np.array([_seconds_or_nan(value, values) for value in values], np.float64)
    return np.arange(len(values), dtype=np.float64)


def _seconds_or_nan(value: Any, values: np.ndarray) -> float:
    first = next(other for other in values if hasattr(other, "calendar"))
    return float((value - first).total_seconds()) if hasattr(value, "calendar") else float("nan")
