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
_TIME_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def write_template(
    folder: Path, template: "xr.Dataset", encodings: Mapping[str, Mapping[str, Any]], attrs: Mapping[str, Any]
) -> Path:
    """Write the store below ``folder`` in two parts, put them together, return where it is."""
    empty = {name: template[name].variable for name in encodings}
    growing = {variable.dims[0] for variable in empty.values() if variable.dims}
    both = _with_empty_dates(with_open_text(template))
    both.attrs = {**template.attrs, **attrs}
    # cut to length 0, xarray writes the metadata of the empty variables without reading a value of them
    cut = both.isel({dim: slice(0, 0) for variable in empty.values() for dim in variable.dims})
    for name in empty:
        cut[name] = cut[name].astype(cut[name].dtype.newbyteorder("="))
    filled = both.drop_vars(list(encodings))
    for part in (cut, filled):
        for key, variable in part.variables.items():
            source = variable if variable.size == 0 and "calendar" in variable.attrs else template[key].variable
            variable.encoding = _encoding(source, growing, encodings.get(str(key)))
    store, rest = folder / "store", folder / "rest"
    _to_zarr(cut, store)
    _to_zarr(filled, rest)
    for name in map(str, filled.variables):
        remove(store / name)
        (rest / name).rename(store / name)
    for name, variable in empty.items():
        set_shape(store / name, variable.shape)
    return store


def _to_zarr(dataset: "xr.Dataset", path: Path) -> None:
    try:
        dataset.to_zarr(path, mode="w-", zarr_format=3, consolidated=False)
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
    values = np.asarray(variable)
    return bool(values.size) and all(isinstance(value, str) for value in values.flat)


def _with_empty_dates(dataset: "xr.Dataset") -> "xr.Dataset":
    """Encode calendar dates of length 0 by their declared units; xarray would take them for numbers."""
    import xarray as xr

    changed = {}
    for name, variable in dataset.variables.items():
        if variable.dtype.kind == "O" and not variable.size and _holds_dates(variable):
            encoding = time_encoding(variable)
            attrs = {**variable.attrs, "units": encoding.pop("units"), "calendar": encoding.pop("calendar")}
            changed[name] = xr.Variable(variable.dims, np.zeros(variable.shape, encoding["dtype"]), attrs)
    coords = {name: variable for name, variable in changed.items() if name in dataset.coords}
    return dataset.assign_coords(coords).assign({n: v for n, v in changed.items() if n not in coords})


def _encoding(variable: "xr.Variable", growing: set[Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Encoding of one variable: ``given`` for an empty one, else what makes its bytes independent of its source."""
    made = time_encoding(variable)
    dtype = np.dtype(made.get("dtype", variable.dtype))
    if dtype.kind in "fc":
        made.update(_FillValue=None, fill_value=dtype.type(np.nan))
    if given is not None:
        return {**made, **given}
    if any(dim in growing for dim in variable.dims):
        others = [max(1, size) for dim, size in variable.sizes.items() if dim not in growing]
        along = max(1, CHUNK_VALUES // int(np.prod(others)))
        made["chunks"] = tuple(along if dim in growing else max(1, size) for dim, size in variable.sizes.items())
    return made


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
