"""SPERR, SZ3 and ZFP through the HDF5 filters of ``hdf5plugin``.

A filter is driven through an HDF5 file that exists in memory only: one dataset of one chunk is written and
its compressed chunk taken out, or the other way round. The filters are C and C++ code that was not written
for hostile input: SPERR ends the process (at exit) after one failed call, and all of them turn non-finite
values into numbers, and they fail on values far from one. So every block is scaled by a power of two to
magnitudes below one, ``eligible`` decides from the shape, the type and the size of the values alone whether
a codec may see a block, and callers hand over finite values and verified bytes only.

Sources: ZFP, Lindstrom 2014, doi:10.1109/TVCG.2014.2346458; SZ3, Liang et al. 2023,
doi:10.1109/TBDATA.2022.3201176; SPERR, Li, Lindstrom & Clyne 2023, doi:10.1109/IPDPS54959.2023.00104.
"""

import itertools
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.errors import StoreError

if TYPE_CHECKING:
    import h5py

#: Largest block handed to a filter, in bytes: HDF5 chunks end at 4 GiB, and the filters use 32-bit sizes inside.
MAX_BYTES = 2**31 - 1

#: Largest ratio between the largest value and the tolerance: the codecs keep bit planes in 64-bit integers.
DYNAMIC_RANGE = 2.0**46

#: Power of two of the scale, the scaled tolerance (which the ZFP filter needs again to decode), and a checksum that
#: ties the stream to the shape and type it was made for: the decoders trust both blindly.
_HEADER = struct.Struct("<hdI")

_names = itertools.count()


def eligible(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], magnitude: float, tolerance: float) -> bool:
    """Whether a codec may be given a block of finite values.

    Parameters
    ----------
    name : {"sperr", "sz3", "zfp"}
    shape : shape of the block; axes of length 1 are ignored
    dtype : type of the values; only native float32 and float64 are lossy-coded
    magnitude : largest absolute value of the block
    tolerance : absolute tolerance, in the block's unit

    Returns
    -------
    bool
    """
    axes = squeezed(shape)
    if dtype not in (np.float32, np.float64) or not axes or np.prod(shape) * dtype.itemsize > MAX_BYTES:
        return False
    if not magnitude > 0 or not magnitude / DYNAMIC_RANGE < tolerance < magnitude * DYNAMIC_RANGE:
        return False
    if name == "sperr":
        return len(axes) in (2, 3)
    return len(axes) <= 4 and int(np.prod(axes)) >= 8


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape without its axes of length 1."""
    return tuple(n for n in shape if n != 1)


def encode(name: str, block: NDArray[Any], tolerance: float) -> bytes:
    """Compress a block with one filter.

    Parameters
    ----------
    name : {"sperr", "sz3", "zfp"}
    block : array, float32 or float64, finite, for which ``eligible`` holds
    tolerance : absolute tolerance handed to the codec [unit of the block]; what it makes of it must be verified

    Returns
    -------
    bytes

    Raises
    ------
    StoreError -- the filter failed, which ``eligible`` should have prevented
    """
    exponent = int(np.frexp(np.abs(block).max())[1])
    values = np.ldexp(np.ascontiguousarray(block).reshape(squeezed(block.shape)), -exponent)
    tolerance = float(np.ldexp(tolerance, -exponent))
    with _memory_file() as file:
        try:
            data = file.create_dataset("x", data=values, chunks=values.shape, **_filter(name, values.ndim, tolerance))
            file.flush()
            payload = bytes(data.id.read_direct_chunk((0,) * values.ndim)[1])
        except (OSError, RuntimeError, ValueError) as err:
            raise StoreError(
                f"codec {name} failed on shape {block.shape}, dtype {block.dtype}, tolerance {tolerance}: {err}"
            ) from err
    return _HEADER.pack(exponent, tolerance, _checksum(payload, values.shape, values.dtype)) + payload


def decode(name: str, payload: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Undo ``encode``; the bytes must be verified by a checksum first.

    Parameters
    ----------
    name : {"sperr", "sz3", "zfp"}
    payload : bytes from ``encode``
    shape, dtype : of the block that was encoded

    Returns
    -------
    array of that shape and dtype

    Raises
    ------
    StoreError -- the filter refused the bytes
    """
    axes = squeezed(shape)
    if len(payload) < _HEADER.size:
        raise StoreError(f"codec {name}: {len(payload)} bytes are shorter than the header of {_HEADER.size}")
    exponent, tolerance, checksum = _HEADER.unpack_from(payload)
    stream = payload[_HEADER.size :]
    if _checksum(stream, axes, dtype) != checksum:
        raise StoreError(f"codec {name}: a stream of {len(stream)} bytes was not made for shape {shape}, dtype {dtype}")
    with _memory_file() as file:
        try:
            options = _filter(name, len(axes), tolerance)
            data = file.create_dataset("x", shape=axes, dtype=dtype, chunks=axes, **options)
            data.id.write_direct_chunk((0,) * len(axes), stream)
            with np.errstate(over="ignore"):
                return np.ldexp(np.asarray(data[...]), exponent).reshape(shape)
        except (OSError, RuntimeError, ValueError) as err:
            raise StoreError(
                f"codec {name} refused {len(payload)} bytes for shape {shape}, dtype {dtype}: {err}"
            ) from err


def _checksum(stream: bytes, axes: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    identity = struct.pack(f"<{len(axes)}Q", *axes) + dtype.newbyteorder("<").str.encode()
    return zlib.crc32(stream, zlib.crc32(identity))


def _filter(name: str, ndim: int, tolerance: float) -> Mapping[str, Any]:
    import hdf5plugin

    if name == "sperr":  # the filter reads a C-ordered cube with its axes reversed unless told to swap them
        return hdf5plugin.Sperr(absolute=tolerance, swap=ndim == 3)
    if name == "sz3":
        return hdf5plugin.SZ3(absolute=tolerance)
    return hdf5plugin.Zfp(accuracy=tolerance)


@contextmanager
def _memory_file() -> Iterator["h5py.File"]:
    import h5py

    with h5py.File(f"headrace-{next(_names)}", "w", driver="core", backing_store=False) as file:
        yield file
