"""Lazy arrays under xarray variables: HDF5 datasets, Zarr arrays, and variables seen with other axes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from headrace.storage.loading import load

if TYPE_CHECKING:
    import zarr

Key = tuple[int | slice | np.ndarray, ...]


class Hdf5Array(BackendArray):
    """One HDF5 dataset; the file is open only while it is read, so that it pickles and survives a fork."""

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path = path
        self.name = name
        self.shape = shape
        self.dtype = dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        """Read a part, as xarray asks for it."""
        support = indexing.IndexingSupport.OUTER_1VECTOR
        return indexing.explicit_indexing_adapter(key, self.shape, support, self._read)

    def _read(self, key: Key) -> np.ndarray:
        import h5py

        with h5py.File(self.path, "r") as file:
            dataset = file[self.name]
            if h5py.check_string_dtype(dataset.dtype) is not None and dataset.dtype.kind == "O":
                dataset = dataset.asstr(errors="replace")
            return np.asarray(dataset[key], self.dtype)


class ZarrArray(BackendArray):
    """One Zarr array."""

    def __init__(self, array: "zarr.Array[Any]") -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = np.dtype(array.dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        """Read a part, as xarray asks for it."""
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: Key) -> np.ndarray:
        return np.asarray(self.array[key])


class Checked(BackendArray):
    """A variable whose reading fails with a `StoreError` that names it."""

    def __init__(self, variable: xr.Variable, name: str) -> None:
        self.variable = variable
        self.name = name
        self.shape = variable.shape
        self.dtype = variable.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        """Read a part, as xarray asks for it."""
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: Key) -> np.ndarray:
        return load(self.variable[key], self.name)


class Reordered(BackendArray):
    """A variable with its axes in another order, after a new first axis of length 1 where asked for.

    xarray's own lazy transpose turns every later read into one by single elements, and its ``expand_dims`` reads all.
    """

    def __init__(self, variable: xr.Variable, order: Sequence[int], *, new_axis: bool) -> None:
        self.variable = variable
        self.order = tuple(order)
        self.new_axis = new_axis
        self.shape = ((1,) if new_axis else ()) + tuple(variable.shape[axis] for axis in order)
        self.dtype = variable.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        """Read a part, as xarray asks for it."""
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: Key) -> np.ndarray:
        first, rest = (key[0], key[1:]) if self.new_axis else (None, key)
        source: list[Any] = [slice(None)] * self.variable.ndim
        for axis, part in zip(self.order, rest, strict=True):
            source[axis] = part
        kept = [axis for axis in self.order if not isinstance(source[axis], int | np.integer)]
        values = np.asarray(self.variable[tuple(source)].values)
        values = values.transpose([sorted(kept).index(axis) for axis in kept])
        return values if first is None else values[np.newaxis][first]


def with_leading(variable: xr.Variable, dim: str) -> xr.Variable:
    """Return the variable with ``dim`` as its first dimension (of length 1 when it had none), without reading it."""
    if variable.dims and variable.dims[0] == dim:
        return variable
    if variable.chunks is not None:  # a Dask array is lazy as it is
        return variable.set_dims((dim, *(name for name in variable.dims if name != dim)))
    new = dim not in variable.dims
    order = [axis for axis, name in enumerate(variable.dims) if name != dim]
    if not new:
        order.insert(0, variable.dims.index(dim))
    dims = (dim, *(name for name in variable.dims if name != dim))
    data = indexing.LazilyIndexedArray(Reordered(variable, order, new_axis=new))
    return xr.Variable(dims, data, variable.attrs, variable.encoding)
