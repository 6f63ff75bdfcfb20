"""How a template becomes the metadata and the small arrays of a Zarr v3 store."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.storage.errors import ParameterError
from headrace.storage.files import read_json, remove, write_bytes

if TYPE_CHECKING:
    import xarray as xr

METADATA = "zarr.json"
CHUNK_VALUES = 65536  # values per chunk of coordinates that grow; fixed, so that growing gives the same bytes
DEFAULT_CHUNK_BYTES = 1 << 22
_TIME_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def write_template(
    folder: Path, template: "xr.Dataset", encodings: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]
) -> Path:
    """Write the store below ``folder`` in two parts, put them together, return where it is."""
    empty = {name: template[name].variable for name in encodings}
    growing = {variable.dims[0] for variable in empty.values() if variable.dims}
    both = _with_empty_dates(with_open_text(template))
    both.attrs = {**template.attrs, **attrs}
    filled = both.drop_vars(list(encodings))
    cut = _cut(both, empty)
    settings = {name: _encoding(empty[name], growing, given) for name, given in encodings.items()}
    for key, variable in filled.variables.items():
        source = variable if variable.size == 0 and "calendar" in variable.attrs else template[key].variable  # a date
        variable.encoding = _encoding(source, growing, None)
    store, rest = folder / "store", folder / "rest"
    _to_zarr(cut, store, settings)
    _to_zarr(filled, rest, {})
    for name in map(str, filled.variables):
        remove(store / name)
        (rest / name).rename(store / name)
    for name, variable in empty.items():
        set_shape(store / name, variable.shape)
    return store


def _cut(dataset: "xr.Dataset", empty: Mapping[str, "xr.Variable"]) -> "xr.Dataset":
    """Cut all to length 0: so xarray writes the metadata of the empty variables without reading a value of them.

    The others are only stand-ins, by whose names and dimensions xarray lists the coordinates of a variable.
    """
    import xarray as xr

    dims = {dim for variable in empty.values() for dim in variable.dims}
    cut = {}
    for name, variable in dataset.variables.items():
        shape = tuple(0 if dim in dims else size for dim, size in variable.sizes.items())
        dtype = variable.dtype.newbyteorder("=") if name in empty else np.dtype("f4")
        cut[name] = xr.Variable(variable.dims, np.zeros(shape, dtype), variable.attrs if name in empty else {})
    coords = {name: variable for name, variable in cut.items() if name in dataset.coords}
    return xr.Dataset({n: v for n, v in cut.items() if n not in coords}, coords, dataset.attrs)


def _to_zarr(dataset: "xr.Dataset", path: Path, encoding: dict[str, Any]) -> None:
    try:
        dataset.to_zarr(path, mode="w-", zarr_format=3, consolidated=False, encoding=encoding)
    except (ValueError, TypeError) as error:
        raise ParameterError(
            f"the store cannot be laid out: {error}; expected encodings and attributes zarr knows"
        ) from error


def with_open_text(dataset: "xr.Dataset") -> "xr.Dataset":
    """Turn text into text of any length: the only kind Zarr v3 has specified, and known as text when empty, too."""
    import xarray as xr

    changed = {
        name: xr.Variable(found.dims, open_text(found.values), found.attrs, found.encoding)
        for name, found in dataset.variables.items()
        if holds_text(found)
    }
    coords = {name: variable for name, variable in changed.items() if name in dataset.coords}
    return dataset.assign_coords(coords).assign({n: v for n, v in changed.items() if n not in coords})


def open_text(values: np.ndarray) -> np.ndarray:
    """Text of any length of an array of text or of bytes (UTF-8)."""
    if values.dtype.kind == "S":
        values = np.strings.decode(values, "utf-8", "replace")
    return values.astype(np.dtypes.StringDType())


def holds_text(variable: "xr.Variable | np.ndarray") -> bool:
    """Whether a variable or an array holds text or bytes, in any of the four dtypes NumPy has for it."""
    if variable.dtype.kind != "O":
        return variable.dtype.kind in "SUT"
    if not variable.size:  # nothing to tell by, and xarray cannot decode calendar dates of length 0
        return False
    return all(isinstance(value, str) for value in np.asarray(variable).flat)


def _with_empty_dates(dataset: "xr.Dataset") -> "xr.Dataset":
    """Encode dates of length 0 by their declared units; xarray would take them for numbers, or fail."""
    import xarray as xr

    changed = {}
    for name, variable in dataset.variables.items():
        if not variable.size and (
            variable.dtype.kind == "M" or (variable.dtype.kind == "O" and _holds_dates(variable))
        ):
            made = {"calendar": "proleptic_gregorian", **time_encoding(variable)}
            attrs = {**variable.attrs, "units": made["units"], "calendar": made["calendar"]}
            changed[name] = xr.Variable(variable.dims, np.zeros(variable.shape, made["dtype"]), attrs)
    coords = {name: variable for name, variable in changed.items() if name in dataset.coords}
    return dataset.assign_coords(coords).assign({n: v for n, v in changed.items() if n not in coords})


def _encoding(variable: "xr.Variable", growing: set[Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Encoding of one variable: ``given`` for an empty one, else what makes its bytes independent of its source."""
    made = time_encoding(variable)
    dtype = np.dtype(made.get("dtype", variable.dtype))
    if dtype.kind in "fc":
        made.update(_FillValue=None, fill_value=dtype.type(np.nan))
    if given is not None:
        for key in ("chunks", "shards"):
            if given.get(key) is not None and len(given[key]) != variable.ndim:  # xarray would take its own ones
                raise ParameterError(
                    f"the store cannot be laid out: {key} {given[key]} for dimensions {variable.dims}; "
                    f"expected {variable.ndim} numbers; correct the encoding"
                )
        return {"chunks": _default_chunks(variable), **made, **given}
    if variable.dims and variable.dims[0] in growing:
        row = tuple(max(1, size) for size in variable.shape[1:])
        made["chunks"] = (max(1, CHUNK_VALUES // int(np.prod(row, dtype=np.int64))), *row)
    return made


def _default_chunks(variable: "xr.Variable") -> tuple[int, ...]:
    """Whole frames, as many as make about 4 MiB; no matter how many there are."""
    frame = tuple(max(1, size) for size in variable.shape[1:])
    count = max(1, DEFAULT_CHUNK_BYTES // int(np.prod(frame, dtype=np.int64) * variable.dtype.itemsize))
    return (count, *frame)[: variable.ndim]


def time_encoding(variable: "xr.Variable") -> dict[str, Any]:
    """Units and calendar of dates: those of the source, else such that every value is exact."""
    if variable.dtype.kind not in "mMO" or (variable.dtype.kind == "O" and not _holds_dates(variable)):
        return {}
    kept = {name: variable.encoding[name] for name in ("units", "calendar", "dtype") if name in variable.encoding}
    if "units" in kept:
        return {"dtype": "int64", **kept}
    if variable.dtype.kind == "O":
        calendar = variable.values.flat[0].calendar if variable.size else kept.get("calendar", "standard")
        return {"units": "microseconds since 1970-01-01", "calendar": calendar, "dtype": "int64"}
    unit = _TIME_UNITS[np.datetime_data(variable.dtype)[0]]
    since = " since 1970-01-01" if variable.dtype.kind == "M" else ""
    return {"units": unit + since, "dtype": "int64"}


def _holds_dates(variable: "xr.Variable") -> bool:
    if "calendar" in variable.encoding:
        return True
    return bool(variable.size) and hasattr(variable.values.flat[0], "calendar")


def set_shape(array: Path, shape: tuple[int, ...]) -> None:
    """Change the shape in the metadata of an array, if it differs."""
    document = read_json(array / METADATA)
    if tuple(document["shape"]) != tuple(shape):
        document["shape"] = [int(size) for size in shape]
        write_metadata(array, document)


def write_metadata(node: Path, document: dict[str, Any]) -> None:
    """Write the metadata document of an array or a group, in the form zarr itself writes."""
    write_bytes(node / METADATA, json.dumps(document, indent=2).encode())
