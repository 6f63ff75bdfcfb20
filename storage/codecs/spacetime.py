"""The Zarr v3 codec ``headrace.spacetime``: one chunk holds one group of frames of one block.

Axis 0 of the array is time. The codec turns an array chunk into bytes (Zarr's "array to bytes" stage) and is
found by Zarr through the entry point of that name, so any program in a Python environment with headrace
installed reads such arrays with ``xarray.open_zarr`` or ``zarr.open``. Reading part of a chunk decodes the
records it needs and no others.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from zarr.abc.codec import ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin

from headrace.storage.codecs.bounds import Bound, FrameStatistics, Mode
from headrace.storage.codecs.groups import decode_group, encode_group
from headrace.storage.codecs.layout import Chunk, unpack
from headrace.storage.codecs.plain import CODECS, LOSSY
from headrace.storage.codecs.predictors import Predictor, PredictorSpec
from headrace.storage.errors import ParameterError, StoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from zarr.abc.store import ByteGetter
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer
    from zarr.core.common import JSON

NAME = "headrace.spacetime"


@dataclass(frozen=True)
class SpaceTimeCodec(ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin):
    """Error-bounded compression of arrays whose first axis is time.

    Parameters
    ----------
    mode : {"abs", "rel", "l2"} -- meaning of ``bound``, see ``headrace.storage.codecs.bounds.Bound``. When an
        array is written through Zarr, relative modes refer to each frame of the *chunk* being written;
        ``headrace run compress`` refers them to whole frames.
    bound : > 0
    codecs : lossy codecs the encoder may choose from; decoding needs no list
    stream : number that ties chunks to this array (0 to 2**32 - 1), so that a chunk of another array is refused
    predictors : steppers that readers run again for frames stored as predictions

    Raises
    ------
    ParameterError -- a value is out of range
    """

    is_fixed_size = False

    mode: Mode
    bound: float
    codecs: tuple[str, ...] = LOSSY
    stream: int = 0
    predictors: tuple[PredictorSpec, ...] = ()

    def __post_init__(self) -> None:
        Bound(self.mode, self.bound)
        object.__setattr__(self, "codecs", tuple(self.codecs))
        unknown = [name for name in self.codecs if name not in CODECS]
        if unknown:
            raise ParameterError(f"codec {unknown[0]!r} is unknown; choose from {', '.join(LOSSY)}")

    @classmethod
    def from_dict(cls, data: "dict[str, JSON]") -> "SpaceTimeCodec":
        """Build the codec from an array's metadata.

        Raises
        ------
        ParameterError -- the configuration has missing, unknown or malformed entries
        """
        configuration = data.get("configuration", {})
        if not isinstance(configuration, Mapping):
            raise ParameterError(f"configuration of {NAME} is {configuration!r}, expected a mapping")
        known = cast("dict[str, Any]", dict(configuration))
        try:
            specs = tuple(PredictorSpec.from_dict(each) for each in known.pop("predictors", ()))
            return cls(**known, predictors=specs)
        except (TypeError, KeyError) as err:
            raise ParameterError(f"configuration of {NAME} does not fit this headrace: {err}") from err

    def to_dict(self) -> "dict[str, JSON]":
        """Return the metadata that ``from_dict`` reads."""
        configuration: dict[str, JSON] = {
            "mode": self.mode,
            "bound": self.bound,
            "codecs": list(self.codecs),
            "stream": self.stream,
        }
        if self.predictors:
            configuration["predictors"] = [spec.to_dict() for spec in self.predictors]
        return {"name": NAME, "configuration": configuration}

    def predictor(self, kind: str) -> Predictor | None:
        """Make the predictor of a record kind; None where the metadata name none.

        Raises
        ------
        StoreError -- the stepper is not installed here
        """
        return next((spec.load() for spec in self.predictors if spec.kind == kind), None)

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:  # noqa: ARG002 - Zarr's signature
        """Refuse arrays that have no time axis or no numbers.

        Raises
        ------
        ParameterError -- zero axes, or a dtype that is not a real or complex number or bool
        """
        native = dtype.to_native_dtype()
        if not shape or native.kind not in "fciub":
            raise ParameterError(f"{NAME} holds numbers with a time axis first, got shape {shape}, dtype {native}")

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: "ArraySpec") -> int:
        """Not known before encoding."""
        raise NotImplementedError

    def encode_frames(self, frames: "NDArray[Any]") -> bytes:
        """Encode one chunk with limits that refer to its own frames.

        Parameters
        ----------
        frames : array, shape (n, ...), time first

        Returns
        -------
        bytes
        """
        bound = Bound(self.mode, self.bound)
        limits = [bound.limit(FrameStatistics.of(frame)) for frame in frames]
        return encode_group(frames, limits, measure=bound.measure, codecs=self.codecs, stream=self.stream).payload

    async def _encode_single(self, chunk_array: "NDBuffer", chunk_spec: "ArraySpec") -> "Buffer | None":
        frames = np.ascontiguousarray(chunk_array.as_numpy_array())
        payload = await asyncio.to_thread(self.encode_frames, frames)
        return chunk_spec.prototype.buffer.from_bytes(payload)

    async def _decode_single(self, chunk_bytes: "Buffer", chunk_spec: "ArraySpec") -> "NDBuffer":
        values = await asyncio.to_thread(self._read, chunk_bytes.to_bytes(), chunk_spec, "", slice(None))
        return chunk_spec.prototype.nd_buffer.from_numpy_array(values)

    async def _decode_partial_single(
        self, byte_getter: "ByteGetter", selection: Any, chunk_spec: "ArraySpec"
    ) -> "NDBuffer | None":
        data = await byte_getter.get(prototype=chunk_spec.prototype)
        if data is None:
            return None
        where = getattr(byte_getter, "path", "")
        keys = selection if isinstance(selection, tuple) else (selection,)
        frames, take = _frame_range(keys[0] if keys else slice(None), chunk_spec.shape[0])
        values = await asyncio.to_thread(self._read, data.to_bytes(), chunk_spec, where, frames)
        return chunk_spec.prototype.nd_buffer.from_numpy_array(values[(take, *keys[1:])])

    def _read(self, data: bytes, spec: "ArraySpec", where: str, frames: slice) -> "NDArray[Any]":
        """Decode frames of a chunk into a full-width array; ``where`` is the chunk's key in the store."""
        start, stop, _ = frames.indices(spec.shape[0])
        dtype = spec.dtype.to_native_dtype()
        out = np.full((stop - start, *spec.shape[1:]), spec.fill_value, dtype)
        try:
            chunk = unpack(data)
            self._check(chunk, spec, where)
            last = min(stop, chunk.extent[0])
            if start < last:
                inner = tuple(slice(0, n) for n in chunk.extent[1:])
                out[(slice(0, last - start), *inner)] = decode_group(chunk, start, last, self.predictor)
        except StoreError as err:
            raise StoreError(f"{_describe(where)}: {err}") from err
        except (ValueError, IndexError, OverflowError, MemoryError) as err:
            raise StoreError(f"{_describe(where)}: the records cannot be decoded ({err})") from err
        return out

    def _check(self, chunk: Chunk, spec: "ArraySpec", where: str) -> None:
        shape = spec.shape
        if len(chunk.extent) != len(shape) or any(n > m or n < 1 for n, m in zip(chunk.extent, shape, strict=True)):
            raise StoreError(f"found a chunk of extent {chunk.extent}, the array has chunks of {shape}")
        dtype = spec.dtype.to_native_dtype()
        if chunk.dtype.newbyteorder("=") != dtype.newbyteorder("="):
            raise StoreError(f"found a chunk of dtype {chunk.dtype}, the array has {dtype}")
        if chunk.stream != self.stream:
            raise StoreError(f"found a chunk of stream {chunk.stream}, the array is stream {self.stream}")
        place = _place(where, len(shape))
        if chunk.index is not None and place is not None and chunk.index != place:
            raise StoreError(f"found the chunk that belongs at {chunk.index}; it was moved or swapped")


def _frame_range(key: Any, length: int) -> tuple[slice, Any]:
    """Smallest range of frames that a selection along time needs, and the selection within it."""
    if isinstance(key, slice):
        start, stop, step = key.indices(length)
        if step == 1:
            return slice(start, max(start, stop)), slice(None)
        wanted: Any = np.arange(start, stop, step)
    else:
        wanted = np.asarray(key)
        if wanted.dtype == bool:
            wanted = np.flatnonzero(wanted)
    if not wanted.size:
        return slice(0, 0), wanted
    low, high = int(wanted.min()), int(wanted.max())
    shifted = wanted - low
    return slice(low, high + 1), (int(shifted) if shifted.ndim == 0 else shifted)


def _place(where: str, axes: int) -> tuple[int, ...] | None:
    """Chunk index from a store key such as ``vorticity/c/3/0/0``; None where the key is of another form."""
    parts = where.split("/")[-axes - 1 :]
    if len(parts) != axes + 1 or parts[0] != "c" or not all(p.isdigit() for p in parts[1:]):
        return None
    return tuple(int(p) for p in parts[1:])


def _describe(where: str) -> str:
    array, mark, chunk = where.partition("/c/")
    return f"array {array!r}, chunk {chunk}" if mark else f"chunk {where!r}" if where else "chunk"
