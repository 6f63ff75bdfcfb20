"""Open what others wrote, lazily and as one kind of thing: an xarray Dataset with decoded values.

The content of a file decides how it is read, not its name. Known are Zarr v2 and v3 (a folder, or a folder packed in a
zip file), NetCDF-4 and any other HDF5 file, and NetCDF-3.
"""

import difflib
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.storage.errors import HeadraceError, SourceError, StoreError
from headrace.storage.loading import load, reason
from headrace.storage.selection import Selection, find_time, select, times_as_seconds

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Selection", "find_time", "load", "open_dataset", "select", "times_as_seconds"]

_log = logging.getLogger(__name__)
_ZARR = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_KNOWN = "expected Zarr (a folder or a zip of one), NetCDF or HDF5"


def open_dataset(path: Path, group: str | None = None) -> "xr.Dataset":
    """Open a Zarr store, NetCDF or HDF5 file as a Dataset; values are read when they are used.

    Values are decoded by the CF conventions: packed integers become floating-point numbers, missing values NaN, times
    ``datetime64`` or, for calendars of models and dates far away, `cftime` objects. Big-endian numbers become native.
    HDF5 datasets and Zarr arrays without names for their dimensions get ``dim_0``, ``dim_1``, ... (one per length).
    HDF5 datasets that are no arrays of numbers or text are left out, with a log line.

    Parameters
    ----------
    path : a file or a Zarr folder
    group : group inside, such as ``"forecast/run1"``; the root by default

    Raises
    ------
    SourceError -- nothing is there, or no such group; the message lists what is there
    StoreError -- it cannot be read: not one of the known formats, truncated or damaged
    """
    path = Path(path)
    if not path.exists():
        raise SourceError(f"no input at {path}{_near(path)}; {_KNOWN}; check the path")
    opener = _opener(path)
    name = (group or "").strip("/")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, about formats; what matters is an error or a log line
            raw, groups = opener(path, name)
            dataset = _decode(raw, path)
    except HeadraceError:
        raise
    except Exception as error:  # whatever a parser says about foreign bytes, they cannot be read
        raise _unreadable(path, error) from error
    if not dataset.variables and groups:
        there = ", ".join(groups[:10])
        raise SourceError(
            f"{path} has no variable at {name or 'its root'}; expected some; choose one of its groups: {there}"
        )
    return dataset


def _unreadable(path: Path, error: BaseException) -> StoreError:
    advice = "restore it from a copy, or check that its writer has finished"
    if "unable to lock" in str(error):
        advice = "wait for its writer, or set HDF5_USE_FILE_LOCKING=FALSE when nothing writes it"
    return StoreError(f"cannot read {path}: {reason(error)}; {_KNOWN}; {advice}")


def _near(path: Path) -> str:
    try:
        names = [item.name for item in path.parent.iterdir()]
    except OSError:
        return f" (nor is there a folder {path.parent})"
    near = difflib.get_close_matches(path.name, names, n=3)
    return f" (there is {', '.join(near)})" if near else ""


Opener = Callable[[Path, str], tuple["xr.Dataset", list[str]]]


def _opener(path: Path) -> Opener:
    """Choose how to open by content."""
    if path.is_dir():
        if any((path / name).is_file() for name in _ZARR):
            return _open_zarr
        inside = [item.name for item in sorted(path.iterdir()) if any((item / name).is_file() for name in _ZARR)]
        hint = f"did you mean {path / inside[0]}?" if inside else "name a file or a Zarr folder"
        raise StoreError(f"{path} is a folder without Zarr metadata; {_KNOWN}; {hint}")
    try:
        with path.open("rb") as handle:
            start = handle.read(8)
    except OSError as error:
        raise _unreadable(path, error) from error
    if start[:4] == b"PK\x03\x04":
        return _open_zip
    if start[:4] in {b"CDF\x01", b"CDF\x02"}:
        return _open_netcdf3
    if start == _HDF5 or _has_user_block(path):
        return _open_hdf5
    kinds = {b"": "empty", b"CDF\x05": "NetCDF-3 with 64-bit data (CDF-5)", b"\x1f\x8b\x08": "gzip", b"GRIB": "GRIB"}
    found = next(
        (kind for magic, kind in kinds.items() if start[: max(len(magic), 1)] == magic), f"unknown ({start!r})"
    )
    raise StoreError(f"cannot read {path}: its content is {found}; {_KNOWN}; convert it first, for example with nccopy")


def _has_user_block(path: Path) -> bool:
    import h5py

    return bool(h5py.is_hdf5(path))


def _open_netcdf3(path: Path, group: str) -> tuple["xr.Dataset", list[str]]:
    import xarray as xr

    if group:
        raise SourceError(
            f"no group {group!r} in {path}: NetCDF-3 has none; expected a variable at its root; leave it out"
        )
    return xr.open_dataset(path, engine="scipy", decode_cf=False, cache=False), []


def _open_hdf5(path: Path, group: str) -> tuple["xr.Dataset", list[str]]:
    import xarray as xr

    from headrace.storage.hdf5 import open_raw, survey

    found = survey(path, group)
    if found.standard:
        raw = xr.open_dataset(path, engine="h5netcdf", group=group or None, decode_cf=False, cache=False)
        return raw, found.groups
    return open_raw(path, group, found), found.groups


def _open_zarr(path: Path, group: str) -> tuple["xr.Dataset", list[str]]:
    return _open_zarr_store(str(path), path, group)


def _open_zip(path: Path, group: str) -> tuple["xr.Dataset", list[str]]:
    from zarr.storage import ZipStore

    store = ZipStore(path, mode="r")
    names = {name.strip("/") for name in _zip_names(path)}
    roots = {name.rpartition("/")[0] for name in names if name.rpartition("/")[2] in _ZARR}
    if not roots:
        raise StoreError(f"cannot read {path}: a zip file without Zarr metadata; {_KNOWN}; pack a Zarr folder")
    base = min(roots, key=lambda root: (root.count("/") + bool(root), root))  # often the folder itself was packed
    return _open_zarr_store(store, path, "/".join(part for part in (base, group) if part), base)


def _zip_names(path: Path) -> list[str]:
    import zipfile

    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def _open_zarr_store(store: Any, path: Path, group: str, base: str = "") -> tuple["xr.Dataset", list[str]]:
    import xarray as xr
    import zarr

    from headrace.storage.lazy import ZarrArray

    try:
        node = zarr.open(store, path=group, mode="r")
    except FileNotFoundError as error:
        names = _zarr_groups(zarr.open_group(store, path=base, mode="r")) if group != base else []
        raise SourceError(
            f"no group {group!r} in {path}; expected one of: {', '.join(names[:10]) or 'none'}; correct --group"
        ) from error
    if isinstance(node, zarr.Group):
        groups = _zarr_groups(node)
        arrays = dict(node.arrays())
        if all(_dimension_names(array) is not None for array in arrays.values()):
            gathered = not group and node.metadata.consolidated_metadata is not None
            _check_members(path, group, {*arrays, *groups})
            raw = xr.open_zarr(store, group=group or None, consolidated=gathered, chunks=None, decode_cf=False)
            return raw, groups
        attrs = dict(node.attrs)
    else:
        groups, attrs, arrays = [], {}, {Path(node.path).name or path.stem: node}
    return _named(arrays, ZarrArray, attrs, path), groups


def _check_members(path: Path, group: str, known: set[str]) -> None:
    """Refuse a store with an array whose metadata zarr skips because they are damaged."""
    if path.is_dir():
        there = {file.parent.name for name in ("zarr.json", ".zarray") for file in (path / group).glob(f"*/{name}")}
        if there - known:
            name = min(there - known)
            raise StoreError(
                f"cannot read {path}: the metadata of {name!r} are damaged; {_KNOWN}; restore it from a copy"
            )


def _zarr_groups(group: Any) -> list[str]:
    return sorted(name for name, node in group.members(max_depth=3) if not hasattr(node, "shape"))


def _dimension_names(array: Any) -> tuple[str, ...] | None:
    """Names of the dimensions of a Zarr array; None when one is missing."""
    if array.metadata.zarr_format == 2:
        names = array.attrs.get("_ARRAY_DIMENSIONS")
    else:
        names = array.metadata.dimension_names
    if array.ndim == 0:
        return () if names is not None or array.metadata.zarr_format == 3 else None
    return tuple(names) if names is not None and all(names) and len(names) == array.ndim else None


def _named(arrays: dict[str, Any], wrap: Callable[[Any], Any], attrs: dict[str, Any], path: Path) -> "xr.Dataset":
    """Make a Dataset of Zarr arrays of which some lack names of dimensions."""
    import xarray as xr
    from xarray.core import indexing

    from headrace.storage.hdf5 import dimension_names

    known = {name: _dimension_names(array) for name, array in arrays.items()}
    dims = dimension_names({name: array.shape for name, array in arrays.items()}, {n: d for n, d in known.items() if d})
    variables = {}
    for name, array in arrays.items():
        own = {key: value for key, value in dict(array.attrs).items() if key != "_ARRAY_DIMENSIONS"}
        data = indexing.LazilyIndexedArray(wrap(array))
        variables[name] = xr.Variable(dims[name], data, own, {"source": str(path)})
    return xr.Dataset(variables, attrs=attrs)


def _decode(raw: "xr.Dataset", path: Path) -> "xr.Dataset":
    """Decode by the CF conventions; times that do not decode stay numbers, with a log line."""
    import xarray as xr

    undecodable, coders = {}, {}
    for name, variable in raw.variables.items():
        units = variable.attrs.get("units")
        if isinstance(units, str) and " since " in units:
            try:
                alone = xr.decode_cf(xr.Dataset({name: variable}), decode_timedelta=False)
            except (ValueError, OverflowError, TypeError) as error:
                undecodable[name] = units
                _log.warning("times of %s in %s stay numbers: %s", name, path, reason(error))
                continue
            if alone[name].dtype.kind == "O":  # said here, xarray does not warn of it at every later read
                coders[str(name)] = xr.coders.CFDatetimeCoder(use_cftime=True)
    hidden = raw.copy(deep=False)
    for name in undecodable:
        hidden[name].attrs = {key: value for key, value in hidden[name].attrs.items() if key != "units"}
    decoded = xr.decode_cf(hidden, decode_times=coders or True, decode_timedelta=False)
    for name, units in undecodable.items():
        decoded[name].attrs["units"] = units
    for variable in decoded.variables.values():
        variable.encoding.setdefault("source", str(path))
    decoded.set_close(raw.close)
    return decoded
