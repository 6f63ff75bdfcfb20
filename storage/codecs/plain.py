"""One name for each single codec: encode and decode one block with a tolerance, no guarantee."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs import native, transforms
from headrace.storage.errors import ParameterError

#: Codec names by their number in the file format. Append only.
CODECS = ("constant", "lossless", "sperr", "sz3", "zfp", "spectrum", "lorenzo")

#: The lossy codecs, in the order in which equal sizes are preferred.
LOSSY = ("sperr", "spectrum", "sz3", "lorenzo", "zfp")

#: Codecs whose last decoded bits depend on the machine's FFT library.
INEXACT = frozenset({"spectrum"})

#: Codecs whose tolerance is meant as a pointwise bound (the spectrum's step is not).
POINTWISE = frozenset({"sperr", "sz3", "zfp", "lorenzo"})


def eligible(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], magnitude: float, tolerance: float) -> bool:
    """Whether a codec may be given a block of finite values; never needs to look at the values themselves.

    Parameters
    ----------
    name : one of ``CODECS``
    shape, dtype : of the block
    magnitude : largest absolute value of the block
    tolerance : absolute tolerance [unit of the block]

    Returns
    -------
    bool

    Raises
    ------
    ParameterError -- unknown codec name
    """
    if name in ("constant", "lossless"):
        return True
    if name not in CODECS:
        raise ParameterError(f"codec {name!r} is unknown; choose from {', '.join(CODECS)}")
    if name in ("sperr", "sz3", "zfp"):
        return native.eligible(name, shape, dtype, magnitude, tolerance)
    floats = dtype in (np.float32, np.float64) and tolerance > 0 and np.isfinite(magnitude)
    growth = float(np.prod(shape)) ** 0.5 if name == "spectrum" else 1.0
    return bool(floats and 0 < len(shape) <= 5 and magnitude < tolerance * 2.0**29 / growth)


def encode_plain(name: str, block: NDArray[Any], tolerance: float) -> bytes:
    """Compress one block with one codec.

    Parameters
    ----------
    name : one of ``CODECS``
    block : array; finite float32 or float64 for the lossy codecs
    tolerance : absolute tolerance [unit of the block]; for ``spectrum`` the quantisation step

    Returns
    -------
    bytes

    Raises
    ------
    StoreError -- the codec cannot hold this block at this tolerance
    """
    if name == "constant":
        return block.reshape(-1)[:1].tobytes()
    if name == "lossless":
        return transforms.encode_lossless(block)
    if name == "spectrum":
        return transforms.encode_spectrum(block, tolerance)
    if name == "lorenzo":
        return transforms.encode_lorenzo(block, tolerance)
    return native.encode(name, block, tolerance)


def decode_plain(name: str, payload: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Undo ``encode_plain``.

    Parameters
    ----------
    name : one of ``CODECS``
    payload : bytes from ``encode_plain``, verified by a checksum
    shape, dtype : of the block that was encoded

    Returns
    -------
    array of that shape and dtype

    Raises
    ------
    StoreError -- the bytes do not decode to that block
    """
    if name == "constant":
        return np.full(shape, np.frombuffer(payload, dtype, count=1)[0])
    if name == "lossless":
        return transforms.decode_lossless(payload, shape, dtype)
    if name == "spectrum":
        return transforms.decode_spectrum(payload, shape, dtype)
    if name == "lorenzo":
        return transforms.decode_lorenzo(payload, shape, dtype)
    return native.decode(name, payload, shape, dtype)
