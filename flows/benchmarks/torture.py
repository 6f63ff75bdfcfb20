"""Fields that break compressors, and damaged chunks: the evidence behind "the bound always holds"."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.codecs.bounds import Bound, FrameStatistics, Mode
from headrace.storage.codecs.groups import decode_group, encode_group
from headrace.storage.codecs.layout import pack, unpack
from headrace.storage.errors import StoreError

SHAPES = ((97,), (5, 61), (4, 24, 31), (3, 16, 16), (2, 9, 10, 11), (2, 5, 4, 6, 7), (4, 1, 40), (1, 1, 1), (6, 33, 1))
FIELDS = ("white", "smooth", "step", "constant", "spike", "denormal", "offset", "huge", "sparse", "all-nan", "integer")
FIELD_COUNT = 200


@dataclass(frozen=True)
class Case:
    """One field of the torture set with the bound it is coded at."""

    name: str
    frames: NDArray[Any]
    bound: Bound


def cases(count: int = FIELD_COUNT, seed: int = 0) -> Iterator[Case]:
    """Yield fields of every kind, shape, precision, memory order and bound mode in turn.

    White noise, spectra falling with the third power of the wavenumber, steps, constants, one value of 1e30
    on a field of 1e6, denormal numbers, a signal of 1e-3 on an offset of 1e6, values near the largest float,
    fields that are mostly zero, all NaN, integers and booleans, complex numbers; every fourth has NaN and
    infinities sprinkled in, every third is in Fortran order, every seventh big-endian.

    Parameters
    ----------
    count : number of fields
    seed : of the random numbers

    Yields
    ------
    Case
    """
    rng = np.random.default_rng(seed)
    modes: tuple[Mode, ...] = ("abs", "rel", "l2")
    for k in range(count):
        kind, shape = FIELDS[k % len(FIELDS)], SHAPES[(k // len(FIELDS) + k) % len(SHAPES)]
        dtype = np.dtype(np.float64 if k % 2 else np.float32)
        frames = _field(kind, shape, dtype, rng)
        if k % 13 == 5 and kind in ("white", "smooth", "step"):
            frames = (frames + 1j * frames[::-1]).astype(np.result_type(dtype, np.complex64))
        if k % 4 == 3 and frames.dtype.kind in "fc":
            spots = rng.random(shape) < max(1e-3, 2.0 / frames.size)
            frames[spots] = rng.choice([np.nan, np.inf, -np.inf], int(spots.sum()))
        if k % 3 == 1:
            frames = np.asfortranarray(frames)
        if k % 7 == 2:
            frames = frames.astype(frames.dtype.newbyteorder(">"))
        mode = modes[(k // 2) % 3]
        value = float(10.0 ** rng.integers(-5, 0)) if k % 20 else 1e-14
        yield Case(f"{k}: {kind} {frames.dtype.str} {shape} {mode} {value:g}", frames, Bound(mode, value))


def _field(kind: str, shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> NDArray[Any]:  # noqa: C901 - one branch a kind
    noise = rng.standard_normal(shape)
    if kind == "integer":
        return [rng.integers(-1000, 1000, shape, np.int32), noise > 0, rng.integers(0, 255, shape, np.uint8)][
            int(rng.integers(3))
        ]
    if kind == "smooth":
        spectrum = np.fft.rfftn(noise)
        axes = [np.fft.fftfreq(n, 1 / n) for n in shape[:-1]] + [np.fft.rfftfreq(shape[-1], 1 / shape[-1])]
        k2 = sum((a**2 for a in np.ix_(*axes)), start=np.zeros(()))
        noise = np.fft.irfftn(spectrum / np.maximum(k2, 1) ** 1.5, s=shape, axes=range(len(shape)))
    elif kind == "step":
        noise = np.where(np.arange(shape[-1]) < shape[-1] // 2, 1.0, -2.5) + 0 * noise
    elif kind == "constant":
        noise = np.full(shape, -7.25)
    elif kind == "spike":
        noise = noise * 1e6
        noise.flat[noise.size // 2] = 1e30
    elif kind == "denormal":
        noise = noise * (1e-42 if dtype == np.float32 else 1e-312)
    elif kind == "offset":
        noise = 1e6 + 1e-3 * np.cumsum(noise, axis=-1)
    elif kind == "huge":
        noise = np.clip(noise, -3, 3) * (float(np.finfo(dtype).max) / 4)
    elif kind == "sparse":
        noise = np.where(rng.random(shape) < 0.02, noise, 0.0)
    elif kind == "all-nan":
        noise = np.full(shape, np.nan)
    return noise.astype(dtype)


def violations(case: Case) -> list[str]:
    """Encode and decode one case; return what is wrong with the result, nothing where the guarantee holds.

    Parameters
    ----------
    case : Case

    Returns
    -------
    list of str
    """
    frames = np.ascontiguousarray(case.frames).astype(case.frames.dtype.newbyteorder("="))
    limits = [case.bound.limit(FrameStatistics.of(frame)) for frame in frames]
    group = encode_group(frames, limits, measure=case.bound.measure)
    decoded = decode_group(unpack(group.payload))
    found = []
    if decoded.shape != frames.shape or decoded.dtype != frames.dtype:
        found.append(f"{case.name}: decodes to {decoded.shape} {decoded.dtype}")
    for k, (u, v, limit) in enumerate(zip(frames, decoded, limits, strict=True)):
        finite = np.isfinite(u)
        if np.asarray(u)[~finite].tobytes() != np.asarray(v)[~finite].tobytes():
            found.append(f"{case.name}: non-finite values of frame {k} changed")
        error = _error(u, v, finite, case.bound)
        if error > limit:
            found.append(f"{case.name}: frame {k} errs by {error}, limit {limit}")
    return found


def _error(u: NDArray[Any], v: NDArray[Any], finite: NDArray[np.bool_], bound: Bound) -> float:
    wide = np.complex128 if np.iscomplexobj(u) else np.float64
    differences = np.abs(np.asarray(u)[finite].astype(wide) - np.asarray(v)[finite].astype(wide))
    if not differences.size:
        return 0.0
    if bound.measure == "max":
        return float(differences.max())
    scale = float(differences.max()) or 1.0
    return scale * float(np.sqrt(np.mean(np.square(differences / scale))))


def mutate(payload: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Damage a chunk in one of the ways storage and people do.

    Flipped bits, truncation, inserted bytes, zeroed runs, a piece of another chunk, records swapped with a
    chunk of the same array, and header fields set to hostile sizes with their checksums made right again.

    Parameters
    ----------
    payload : a valid chunk
    other : another valid chunk of the same array
    rng : source of randomness

    Returns
    -------
    bytes that differ from ``payload``
    """
    data = bytearray(payload)
    while bytes(data) == payload:
        data = bytearray(payload)
        way, at = int(rng.integers(8)), int(rng.integers(len(payload)))
        if way == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif way == 1:
            del data[at:]
        elif way == 2:
            data[at:at] = rng.bytes(int(rng.integers(1, 64)))
        elif way == 3:
            data[at : at + 32] = bytes(len(data[at : at + 32]))
        elif way == 4:
            data[at : at + 256] = other[at : at + 256]
        elif way == 5:
            data = bytearray(_swap_records(payload, other, rng))
        elif way == 6:
            data[at : at + 4] = b"\xff\xff\xff\xff"
        else:
            data = bytearray(_hostile_header(payload, rng))
    return bytes(data)


def _swap_records(payload: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Move the raw bytes of one record of another chunk over those of this one."""
    records, foreign = unpack(payload).records, unpack(other).records
    k = int(rng.integers(min(len(records), len(foreign))))
    head = len(payload) - sum(r.nbytes for r in records)
    head_other = len(other) - sum(r.nbytes for r in foreign)
    a = head + sum(r.nbytes for r in records[:k])
    b = head_other + sum(r.nbytes for r in foreign[:k])
    return payload[:a] + other[b : b + foreign[k].nbytes] + payload[a + records[k].nbytes :]


def _hostile_header(payload: bytes, rng: np.random.Generator) -> bytes:
    """Declare another extent, place or dtype, with every checksum valid."""
    chunk = unpack(payload)
    extent = list(chunk.extent)
    extent[int(rng.integers(1, len(extent)))] = int(rng.choice([0, 1, 2**16, 2**20]))
    ways = (
        replace(chunk, extent=tuple(extent)),
        replace(chunk, index=tuple(int(n) for n in rng.integers(100, 1000, len(extent)))),
        replace(chunk, dtype=np.dtype(np.float64)),
        replace(chunk, stream=chunk.stream + 1),
    )
    try:
        return pack(ways[int(rng.integers(len(ways)))])
    except StoreError:
        return payload


def decode_mutants(payload: bytes, other: bytes, count: int, seed: int, array: NDArray[Any]) -> dict[str, int]:
    """Decode damaged chunks the way Zarr does and count what happens.

    Parameters
    ----------
    payload, other : valid chunks of one array with chunks shaped like ``array``
    count : number of mutants
    seed : of the mutations
    array : what ``payload`` decodes to

    Returns
    -------
    dict -- ``refused`` (a ``StoreError`` that names array and chunk), ``same`` (decodes to the true values),
    ``wrong`` (anything else)
    """
    import zarr
    from zarr.core.buffer.cpu import Buffer
    from zarr.storage import MemoryStore

    from headrace.storage.codecs.spacetime import SpaceTimeCodec

    stream = unpack(payload).stream
    contents: dict[str, Any] = {}
    store = MemoryStore(contents)
    zarr.create_array(
        store, name="field", shape=array.shape, chunks=array.shape, dtype=array.dtype,
        serializer=SpaceTimeCodec("abs", 1.0, stream=stream), compressors=None, filters=None,
    )  # fmt: skip
    target = zarr.open_array(store, path="field", mode="r")
    key = "field/c/" + "/".join("0" * array.ndim)
    rng = np.random.default_rng(seed)
    counts = {"refused": 0, "same": 0, "wrong": 0}
    for _ in range(count):
        contents[key] = Buffer.from_bytes(mutate(payload, other, rng))
        try:
            same = np.array_equal(np.asarray(target[...]), array, equal_nan=True)
            counts["same" if same else "wrong"] += 1
        except StoreError as err:
            named = "'field'" in str(err) and "chunk 0/" in str(err)
            counts["refused" if named else "wrong"] += 1
    return counts
