"""Write a dataset as an ordinary NetCDF, HDF5 or Zarr file, block by block, whole or not at all."""

import contextlib
import json
import os
import uuid
import warnings
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.storage.arrays import consolidate, sync_tree
from headrace.storage.errors import HeadraceError, ParameterError, RunExistsError
from headrace.storage.files import TEMPORARY, remove, store_error, sync_folder
from headrace.storage.guarded import GuardedFile
from headrace.storage.layout import METADATA, time_encoding, with_open_text

if TYPE_CHECKING:
    import xarray as xr

NETCDF = (".nc", ".nc4", ".cdf")
HDF5 = (".h5", ".hdf5", ".hdf")
ZARR = (".zarr",)
BLOCK_BYTES = 1 << 24  # of one block in memory
CHUNK_BYTES = 1 << 22  # of one chunk in a file
_SMALL = 1 << 12  # values below which neither blocks nor compression are worth their overhead


def write_dataset(ds: "xr.Dataset", to: Path, overwrite: bool = False) -> None:
    """Write a dataset in the format its file name's ending says.

    ``.nc``, ``.nc4``: NetCDF-4, deflated; ``.h5``, ``.hdf5``: HDF5 with dimension scales, deflated; ``.zarr``: a
    Zarr v3 folder with consolidated metadata, Zstandard. Values are written as they are decoded (no packing),
    attributes are kept, dates keep their units and calendar. NetCDF has no half precision (written as single) and keeps
    complex numbers as the compound of ``r`` and ``i`` that HDF5 programs know; attributes it cannot hold become JSON
    text. Zarr v3 has no fixed-length bytes (written as text).
    Lazy variables are copied block by block (`blocked`), so that memory does not grow with the dataset.

    Parameters
    ----------
    ds : the dataset; lazy or not
    to : target, with one of the endings above
    overwrite : replace a file, or a Zarr store, that is there

    Raises
    ------
    ParameterError -- another ending, or values the format cannot hold
    RunExistsError -- the target exists (and may not be overwritten, or is a folder that is no Zarr store)
    StoreError -- the place cannot be written or is full; the target is then as it was
    """
    to = Path(to)
    suffix = to.suffix.lower()
    if suffix not in (*NETCDF, *HDF5, *ZARR):
        raise ParameterError(f"target {to} ends in {suffix!r}; expected .nc, .h5, .hdf5 or .zarr; choose one of them")
    _check_target(to, overwrite, folder=suffix in ZARR)
    temporary = to.with_name(f".{uuid.uuid4().hex}{TEMPORARY}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if suffix in ZARR:
            _write_zarr(ds, temporary)
        else:
            _write_netcdf(ds, temporary, strict=suffix in NETCDF)
        _put_in_place(temporary, to)
    except HeadraceError:
        raise
    except OSError as error:
        raise store_error("write", to, error) from error
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        if isinstance(error.__context__, OSError):
            raise store_error("write", to, error.__context__) from error
        raise ParameterError(f"cannot write {to}: {error}; expected values {suffix} can hold; try .zarr") from error
    finally:
        with contextlib.suppress(OSError):
            remove(temporary)


def _check_target(to: Path, overwrite: bool, *, folder: bool) -> None:
    if not to.exists() and not to.is_symlink():
        return
    if not overwrite:
        raise RunExistsError(f"{to} exists; expected a free place; choose another name, or overwrite it")
    if to.is_dir() and not (folder and any((to / name).is_file() for name in (METADATA, ".zgroup"))):
        raise RunExistsError(f"{to} is a folder and no Zarr store; expected a free place; choose another name")


def _put_in_place(temporary: Path, to: Path) -> None:
    """Rename what was written over the target; a folder that was there is moved aside first."""
    if to.is_dir():
        aside = to.with_name(f".{uuid.uuid4().hex}{TEMPORARY}")
        to.rename(aside)
        temporary.rename(to)
        remove(aside)
    else:
        temporary.replace(to)
    sync_folder(to.parent)


def blocked(ds: "xr.Dataset") -> "xr.Dataset":
    """Split large lazy variables into blocks (Dask chunks) of about 16 MiB that are whole stored chunks.

    Do this before cutting a part out of a dataset, so that no stored chunk is decoded twice.
    """
    made = {name: _blocked(variable, str(name)) for name, variable in ds.variables.items() if name not in ds.indexes}
    coords = {name: variable for name, variable in made.items() if name in ds.coords}
    return ds.assign_coords(coords).assign({n: v for n, v in made.items() if n not in coords})


def _blocked(variable: "xr.Variable", name: str) -> "xr.Variable":
    import xarray as xr
    from xarray.core import indexing

    from headrace.storage.lazy import Checked

    if variable.chunks is not None or variable.size <= _SMALL:
        return variable
    sizes = _file_chunks(variable)
    left = BLOCK_BYTES // (_points(sizes) * variable.dtype.itemsize)
    for axis in reversed(range(variable.ndim)):
        factor = max(1, min(left, -(-variable.shape[axis] // sizes[axis])))
        sizes[axis] = min(sizes[axis] * factor, variable.shape[axis])
        left //= factor
    data = indexing.LazilyIndexedArray(Checked(variable, name))
    return xr.Variable(variable.dims, data, variable.attrs, variable.encoding).chunk(tuple(sizes))


def _file_chunks(variable: "xr.Variable") -> list[int]:
    """Chunks in a file: those of the source where they are of a good size, else about 4 MiB of the last dimensions."""
    stored = variable.encoding.get("preferred_chunks") or {}
    sizes = [max(1, min(size, int(stored.get(dim, size)))) for dim, size in variable.sizes.items()]
    small, large = (CHUNK_BYTES // 64) // variable.dtype.itemsize, (CHUNK_BYTES * 4) // variable.dtype.itemsize
    if stored and min(small, variable.size) <= _points(sizes) <= large:
        return sizes
    left = max(1, CHUNK_BYTES // variable.dtype.itemsize)
    for axis in reversed(range(variable.ndim)):
        sizes[axis] = max(1, min(variable.shape[axis], left))
        left //= sizes[axis]
    return sizes


def _points(sizes: Sequence[int]) -> int:
    return int(np.prod(sizes, dtype=np.int64))


def _write_netcdf(ds: "xr.Dataset", path: Path, *, strict: bool) -> None:
    import dask

    prepared = _prepared(_with_netcdf_values(ds, strict=strict))
    for name, variable in prepared.variables.items():
        if name in prepared.coords or name in _bounds(prepared):
            variable.encoding["_FillValue"] = None
        if variable.size > _SMALL and variable.dtype.kind in "biufcmM":
            chunks = tuple(_file_chunks(ds[name].variable))
            variable.encoding.update(zlib=True, complevel=1, shuffle=True, chunksizes=chunks)
    with contextlib.closing(GuardedFile(path)) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are writing invalid netcdf")  # HDF5 was asked for
        for variable in prepared.variables.values():
            if variable.chunks:
                variable.data = variable.data.map_blocks(file.check, dtype=variable.dtype)
        with dask.config.set(scheduler="synchronous"):
            prepared.to_netcdf(file, engine="h5netcdf", invalid_netcdf=not strict)
        file.check(None)
        os.fsync(file.fileno())


def _write_zarr(ds: "xr.Dataset", path: Path) -> None:
    import dask

    prepared = with_open_text(_prepared(ds))
    for name, variable in prepared.variables.items():
        if variable.chunks:
            variable.encoding["chunks"] = tuple(_file_chunks(ds[name].variable))
    with dask.config.set(scheduler="synchronous"):
        # one thread writes, so that blocks which share a chunk cannot lose each other's values
        prepared.to_zarr(path, mode="w-", zarr_format=3, consolidated=False, safe_chunks=False)
    consolidate(path)
    sync_tree(path)


def _prepared(ds: "xr.Dataset") -> "xr.Dataset":
    """Return a copy in blocks without the encodings of its source, except those of dates."""
    made = blocked(ds)
    for name, variable in made.variables.items():
        variable.encoding = time_encoding(ds[name].variable)
    made.encoding = {}
    return made


def _bounds(ds: "xr.Dataset") -> set[Hashable]:
    return {variable.attrs["bounds"] for variable in ds.variables.values() if "bounds" in variable.attrs}


def _with_netcdf_values(ds: "xr.Dataset", *, strict: bool) -> "xr.Dataset":
    """Change what NetCDF or HDF5 cannot hold: text dtypes, half precision, nested attributes."""
    changed = {}
    for name, variable in ds.variables.items():
        if variable.dtype.kind in "TU":
            changed[name] = variable.astype(object)
        elif variable.dtype == np.float16 and strict:
            changed[name] = variable.astype(np.float32)
    coords = {name: variable for name, variable in changed.items() if name in ds.coords}
    made = ds.assign_coords(coords).assign({n: v for n, v in changed.items() if n not in coords})
    made.attrs = _netcdf_attributes(made.attrs)
    for variable in made.variables.values():
        variable.attrs = _netcdf_attributes(variable.attrs)
    return made


def _netcdf_attributes(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in attrs.items():
        flat = isinstance(value, list | tuple) and len({type(item) for item in value}) == 1
        if isinstance(value, bool | np.bool_):
            made[str(name)] = np.int8(value)
        elif isinstance(value, str | bytes | int | float | complex | np.ndarray | np.generic):
            made[str(name)] = value
        elif flat and isinstance(value[0], str | int | float) and not isinstance(value[0], bool):
            made[str(name)] = list(value)
        else:
            made[str(name)] = json.dumps(value, default=str)
    return made
