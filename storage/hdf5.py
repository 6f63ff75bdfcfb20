"""HDF5 files that are not, or not only, NetCDF: datasets of any kind, with or without dimension scales."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.storage.errors import SourceError

if TYPE_CHECKING:
    import h5py
    import xarray as xr

_log = logging.getLogger(__name__)
_HIDDEN = frozenset({"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS", "_Netcdf4Dimid"})
_HIDDEN_MORE = frozenset({"_Netcdf4Coordinates", "_nc3_strict", "_NCProperties"})
_ONLY_DIMENSION = b"This is a netCDF dimension but not a netCDF variable"
_TIME_NAMES = ("time", "t", "times")


@dataclass
class Survey:
    """What a group holds.

    Attributes
    ----------
    standard : every dataset is as NetCDF-4 has it, so that its own reader can be used
    usable : names of datasets of numbers or text
    odd : why each other dataset is left out
    groups : names of the groups inside, by their paths
    """

    standard: bool = True
    usable: list[str] = field(default_factory=list)
    odd: dict[str, str] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)


def survey(path: Path, group: str) -> Survey:
    """Look at the datasets of one group, without reading any.

    Raises
    ------
    SourceError -- there is no such group
    """
    import h5py

    found = Survey()
    with h5py.File(path, "r") as file:
        if group and not isinstance(file.get(group), h5py.Group):
            names = _groups(file)
            raise SourceError(
                f"no group {group!r} in {path}; expected one of: {', '.join(names[:10]) or 'none'}; correct --group"
            )
        node = file[group or "/"]
        found.groups = _groups(node)
        for name, item in node.items():
            if not isinstance(item, h5py.Dataset):
                continue
            reason = _oddity(item)
            if reason:
                found.odd[name] = reason
            else:
                found.usable.append(name)
            attached = item.is_scale or item.ndim == 0 or all(len(dim) for dim in item.dims)
            found.standard &= not reason and attached and _plain_attributes(item)
        found.standard &= bool(found.usable) and _plain_attributes(node)
    return found


def _groups(node: "h5py.Group") -> list[str]:
    import h5py

    names: list[str] = []
    node.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Group) else None)
    return sorted(names)


def _plain_attributes(item: Any) -> bool:
    """Whether all attributes are numbers or text (those of dimension scales aside)."""
    names = set(item.attrs) - _HIDDEN
    return all(_is_plain(item.attrs.get_id(name).dtype) for name in names)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    import h5py

    return dtype.kind in "biufcSU" or h5py.check_string_dtype(dtype) is not None


def _oddity(dataset: "h5py.Dataset") -> str | None:
    """Why a dataset is no array of numbers or text; None when it is one."""
    import h5py

    try:
        dtype = dataset.dtype
    except TypeError as error:  # a type NumPy has no word for
        return str(error)
    if dataset.shape is None:
        return "it has no values"
    if h5py.check_ref_dtype(dtype) is not None:
        return "it holds references"
    if h5py.check_string_dtype(dtype) is None and h5py.check_vlen_dtype(dtype) is not None:
        return "its elements have varying lengths"
    if dtype.kind == "V":
        return f"its elements are compound or opaque ({dtype})"
    if dtype.kind == "O" and h5py.check_string_dtype(dtype) is None:
        return f"its elements are no numbers ({dtype})"
    return None


def open_raw(path: Path, group: str, found: Survey) -> "xr.Dataset":
    """Make a lazy Dataset, not yet decoded, of the usable datasets of a group; log which are left out."""
    import h5py
    import xarray as xr
    from xarray.core import indexing

    from headrace.storage.lazy import Hdf5Array

    for name, reason in found.odd.items():
        _log.warning("dataset %s of %s is left out: %s", name, path, reason)
    variables = {}
    with h5py.File(path, "r") as file:
        node = file[group or "/"]
        used = {name: node[name] for name in found.usable if not _is_only_dimension(node[name])}
        dims = dimension_names({name: item.shape for name, item in used.items()}, _known(used))
        for name, item in used.items():
            data = indexing.LazilyIndexedArray(Hdf5Array(path, item.name, item.shape, _dtype(item)))
            encoding = {"source": str(path), "dtype": _dtype(item)}
            variables[name] = xr.Variable(dims[name], data, _attributes(item), encoding)
        attrs = _attributes(node)
    return xr.Dataset(variables, attrs=attrs)


def _dtype(item: "h5py.Dataset") -> np.dtype[Any]:
    import h5py

    enum = h5py.check_enum_dtype(item.dtype)
    return item.dtype if enum is None or item.dtype.kind == "b" else np.dtype(item.dtype.str)


def _is_only_dimension(item: "h5py.Dataset") -> bool:
    name = item.attrs.get("NAME", b"")
    return item.is_scale and (name.encode() if isinstance(name, str) else bytes(name)).startswith(_ONLY_DIMENSION)


def _known(used: "Mapping[str, h5py.Dataset]") -> dict[str, tuple[str | None, ...]]:
    """Names of dimensions that the file gives: by scales, else by labels."""
    known: dict[str, tuple[str | None, ...]] = {}
    for name, item in used.items():
        if item.is_scale and item.ndim == 1:
            known[name] = (name,)
        else:
            known[name] = tuple(dim[0].name.rpartition("/")[2] if len(dim) else dim.label or None for dim in item.dims)
    return known


def _attributes(item: Any) -> dict[str, Any]:
    """Attributes as numbers, text and lists of them; single elements as scalars; references and the like left out."""
    made = {}
    for name in set(item.attrs) - _HIDDEN - _HIDDEN_MORE:
        try:
            if _is_plain(item.attrs.get_id(name).dtype):
                made[name] = _plain_value(item.attrs[name])
        except (OSError, TypeError, ValueError):  # an attribute that cannot be read takes nothing from the data
            _log.warning("attribute %s of %s is left out: it cannot be read", name, item.name)
    return {name: made[name] for name in item.attrs if name in made}


def _plain_value(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, np.ndarray) and value.dtype.kind in "SUO":
        return [_plain_value(part) for part in value.ravel().tolist()]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def dimension_names(
    shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, tuple[str | None, ...]]
) -> dict[str, tuple[str, ...]]:
    """Name every dimension of arrays: as known, else one name per length, ``dim_0``, ``dim_1``, ...

    Two axes of one array never share a name. A dimension without a known name takes that of a one-dimensional array
    called ``time`` or ``t`` (the only one of its length) so that it is found as the time axis.

    Parameters
    ----------
    shapes : shape by array
    known : names by array; None for a dimension without

    Returns
    -------
    names by array
    """
    lines: dict[int, list[str]] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            lines.setdefault(shape[0], []).append(name)
    taken = {name for names in known.values() for name in names if name}
    made: dict[int, list[str]] = {}
    result = {}
    for array, shape in shapes.items():
        names: list[str] = []
        for axis, size in enumerate(shape):
            given = known.get(array, (None,) * len(shape))[axis]
            if given and given not in names:
                names.append(given)
                continue
            choices = made.setdefault(size, [])
            free = [name for name in choices if name not in names]
            if not free:
                free = [_new_name(size, lines, taken, first=not choices)]
                choices.extend(free)
            names.append(free[0])
        result[array] = tuple(names)
    return result


def _new_name(size: int, lines: Mapping[int, list[str]], taken: set[str], *, first: bool) -> str:
    candidates = [name for name in lines.get(size, []) if name.lower() in _TIME_NAMES]
    if first and len(candidates) == 1 and candidates[0] not in taken:
        taken.add(candidates[0])
        return candidates[0]
    number = sum(name.startswith("dim_") for name in taken)
    while f"dim_{number}" in taken:
        number += 1
    taken.add(f"dim_{number}")
    return f"dim_{number}"
