"""The bytes of one chunk: a header and typed records, every byte under a checksum.

All numbers are little-endian. A chunk is::

    header   magic "HDRC", version u1, frame axes u1, flags u1, reserved u1, dtype 4 bytes, stream u4,
             chunk index u4 x axes, extent u4 x axes, [times f8 x frames], records u4, records crc u4, header crc u4
    records  kind 1 byte, codec u1, flags u1, reserved u1, first frame u4, frames u4, limit f8,
             largest error f8, relative L2 f4, bytes of payload u4, of patches u4, of mask u4,
             crc of the decoded frames u4, crc u4; then payload, patches, mask

Each record's checksum starts from the header's identity (stream, index, extent) and its place in the chunk,
and the header holds a checksum over those of the records, so a record that was moved, swapped or dropped is
found before any codec sees its bytes. ``docs/format.md`` describes the meaning of the fields.
"""

import math
import struct
import zlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from headrace.storage.codecs.plain import CODECS
from headrace.storage.codecs.predictors import PREDICTED
from headrace.storage.errors import StoreError

MAGIC = b"HDRC"
VERSION = 1
KINDS = "IPLAS"

#: Chunk flag: the chunk knows its place in the array, and readers check it.
PLACED = 1
#: Chunk flag: the time of every frame is stored, which predicted records (A, S) need.
TIMED = 2
#: Record flags: the limit is on the root mean square error; the decoded checksum holds on every machine.
RMS, EXACT = 1, 2

_FIXED = struct.Struct("<4sBBBB4sI")
_RECORD = struct.Struct("<cBBBIIddfIIIII")


@dataclass(frozen=True)
class Record:
    """One typed record: a run of frames in one codec.

    ``kind`` is I (coded alone), P (coded as a difference to the decoded frame before), A or S (to that frame moved with
    the flow, or advanced by the solver) or L (lossless).
    ``limit`` is the guaranteed absolute error [unit of the field], pointwise or, when ``rms`` is set, root
    mean square, the largest of the frames' limits; ``max_error`` is the largest error measured and ``rel_l2`` the
    relative L2 error of the run.
    """

    kind: str
    codec: str
    first: int
    count: int
    limit: float
    max_error: float
    rel_l2: float
    payload: bytes = field(repr=False)
    patches: bytes = field(repr=False, default=b"")
    mask: bytes = field(repr=False, default=b"")
    rms: bool = False
    exact: bool = True
    decoded_crc: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes this record takes in a chunk."""
        return _RECORD.size + len(self.payload) + len(self.patches) + len(self.mask)


@dataclass(frozen=True)
class Chunk:
    """One group of frames of one block: what it is, where it belongs, and its records."""

    dtype: np.dtype[Any]
    extent: tuple[int, ...]
    records: tuple[Record, ...]
    stream: int = 0
    index: tuple[int, ...] | None = None
    times: tuple[float, ...] | None = None


def pack(chunk: Chunk) -> bytes:
    """Serialise a chunk.

    Parameters
    ----------
    chunk : Chunk

    Returns
    -------
    bytes
    """
    identity = _identity(chunk)
    parts, checks = [], []
    for place, record in enumerate(chunk.records):
        body = record.payload + record.patches + record.mask
        head = _record_head(record)
        crc = zlib.crc32(body, zlib.crc32(head, zlib.crc32(identity, place)))
        parts.append(head + struct.pack("<I", crc) + body)
        checks.append(crc)
    header = identity + struct.pack("<II", len(checks), zlib.crc32(struct.pack(f"<{len(checks)}I", *checks)))
    return header + struct.pack("<I", zlib.crc32(header)) + b"".join(parts)


def unpack(data: bytes) -> Chunk:
    """Parse and verify a chunk; no codec is run.

    Parameters
    ----------
    data : bytes of one chunk

    Returns
    -------
    Chunk

    Raises
    ------
    StoreError -- not a chunk, a newer version, or bytes that do not match their checksums
    """
    if len(data) < _FIXED.size or data[:4] != MAGIC:
        raise StoreError(f"found {data[:4]!r} at the start of {len(data)} bytes, expected a headrace chunk ({MAGIC!r})")
    _, version, axes, flags, _, kind, stream = _FIXED.unpack_from(data)
    if version != VERSION:
        raise StoreError(f"found chunk format version {version}, this headrace reads {VERSION}; use a newer headrace")
    end = _FIXED.size + 8 * axes
    times = _parse_times(data, end, axes) if flags & TIMED else None
    end += 8 * len(times or ())
    if len(data) < end + 12:
        raise StoreError(f"chunk of {len(data)} bytes ends inside its header of {end + 12}")
    count, records_crc, header_crc = struct.unpack_from("<III", data, end)
    if zlib.crc32(data[: end + 8]) != header_crc:
        raise StoreError("the chunk header does not match its checksum; the bytes are damaged")
    index = struct.unpack_from(f"<{axes}I", data, _FIXED.size)
    extent = struct.unpack_from(f"<{axes}I", data, _FIXED.size + 4 * axes)
    records, checks, start = [], [], end + 12
    for place in range(count):
        record, crc, start = _parse_record(data, start, zlib.crc32(data[:end], place))
        records.append(record)
        checks.append(crc)
    if start != len(data) or zlib.crc32(struct.pack(f"<{count}I", *checks)) != records_crc:
        raise StoreError(f"found {len(data)} bytes, the {count} records end at {start}; the chunk is damaged")
    try:
        dtype = np.dtype(kind.rstrip(b"\0").decode("ascii"))
    except (TypeError, UnicodeDecodeError) as err:
        raise StoreError(f"chunk declares the unknown dtype {kind!r}") from err
    _check_cover(records, extent)
    if times is None and any(record.kind in PREDICTED for record in records):
        raise StoreError("the chunk has predicted records but no times of its frames")
    return Chunk(dtype, extent, tuple(records), stream, index if flags & PLACED else None, times)


def _parse_times(data: bytes, start: int, axes: int) -> tuple[float, ...]:
    """Times of the frames, which follow the extent; their number is the extent's first entry."""
    if not axes or len(data) < start:
        raise StoreError(f"chunk of {len(data)} bytes ends inside its header")
    (frames,) = struct.unpack_from("<I", data, _FIXED.size + 4 * axes)
    if len(data) < start + 8 * frames:
        raise StoreError(f"chunk of {len(data)} bytes is too short for the times of {frames} frames")
    return struct.unpack_from(f"<{frames}d", data, start)


def _check_cover(records: list[Record], extent: tuple[int, ...]) -> None:
    expected = 0
    for record in records:
        follows = record.kind not in "IL"
        if record.first != expected or record.count < 1 or (follows and (record.first == 0 or record.count > 1)):
            raise StoreError(f"record at frame {record.first} does not follow frame {expected}")
        expected += record.count
    if not extent or expected != extent[0] or not records or math.prod(extent) > 2**40:
        raise StoreError(f"records hold {expected} frames, the chunk declares the extent {extent}")


def _identity(chunk: Chunk) -> bytes:
    axes = len(chunk.extent)
    index = chunk.index or (0,) * axes
    kind = chunk.dtype.newbyteorder("<").str.encode("ascii").ljust(4, b"\0")
    flags = PLACED * (chunk.index is not None) | TIMED * (chunk.times is not None)
    fixed = _FIXED.pack(MAGIC, VERSION, axes, flags, 0, kind, chunk.stream)
    times = chunk.times or ()
    return fixed + struct.pack(f"<{2 * axes}I{len(times)}d", *index, *chunk.extent, *times)


def _record_head(record: Record) -> bytes:
    flags = RMS * record.rms | EXACT * record.exact
    return _RECORD.pack(
        record.kind.encode(),
        CODECS.index(record.codec),
        flags,
        0,
        record.first,
        record.count,
        record.limit,
        record.max_error,
        record.rel_l2,
        len(record.payload),
        len(record.patches),
        len(record.mask),
        record.decoded_crc,
        0,
    )[:-4]


def _parse_record(data: bytes, start: int, seed: int) -> tuple[Record, int, int]:
    body = start + _RECORD.size
    if body > len(data):
        raise StoreError(f"record header at byte {start} runs past the end of the chunk at {len(data)}")
    kind, codec, flags, _, first, count, limit, max_error, rel_l2, *lengths, decoded_crc, crc = _RECORD.unpack_from(
        data, start
    )
    end = body + sum(lengths)
    if end > len(data):
        raise StoreError(f"record at byte {start} declares {sum(lengths)} bytes, {len(data) - body} are left")
    if zlib.crc32(data[body:end], zlib.crc32(data[start : body - 4], seed)) != crc:
        raise StoreError(f"record of frame {first} does not match its checksum; the bytes are damaged")
    if kind.decode("latin-1") not in KINDS or codec >= len(CODECS):
        raise StoreError(f"record kind {kind!r} with codec number {codec} is unknown; use a newer headrace")
    n_payload, n_patches, _ = lengths
    cuts = (body, body + n_payload, body + n_payload + n_patches, end)
    payload, patches, mask = (data[a:b] for a, b in pairwise(cuts))
    record = Record(
        kind.decode(),
        CODECS[codec],
        first,
        count,
        limit,
        max_error,
        rel_l2,
        payload,
        patches,
        mask,
        bool(flags & RMS),
        bool(flags & EXACT),
        decoded_crc,
    )
    return record, crc, end
