"""The bytes of a chunk, against an independent reading of their description, and against damage."""

import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest

from headrace.flows.benchmarks.torture import decode_mutants
from headrace.storage.codecs.groups import decode_group, encode_group
from headrace.storage.codecs.layout import VERSION, unpack
from headrace.storage.errors import StoreError


def chunk_bytes(scale: float = 1.0, index: tuple[int, ...] = (0, 0, 0)) -> bytes:
    field = np.cumsum(np.cumsum(np.random.default_rng(0).standard_normal((6, 32, 40)), 1), 2).astype("f4") * scale
    field[:, :4, :5] = np.nan
    return encode_group(field.astype("f4"), [0.5] * 6, stream=7, index=index).payload


def test_header_and_records_are_where_the_format_page_says() -> None:
    data = chunk_bytes(index=(3, 0, 1))
    magic, version, axes, flags, _, dtype, stream = struct.unpack_from("<4sBBBB4sI", data)
    assert (magic, version, axes, flags, dtype, stream) == (b"HDRC", VERSION, 3, 1, b"<f4\0", 7)
    assert struct.unpack_from("<3I", data, 16) == (3, 0, 1)
    assert struct.unpack_from("<3I", data, 28) == (6, 32, 40)
    count, _, header_crc = struct.unpack_from("<III", data, 40)
    assert header_crc == zlib.crc32(data[:48])
    position, frames = 52, 0
    for place in range(count):
        head = struct.unpack_from("<cBBBIIddfIIIII", data, position)
        body = position + 52
        end = body + sum(head[9:12])
        seed = zlib.crc32(data[:40], place)
        assert head[-1] == zlib.crc32(data[body:end], zlib.crc32(data[position : body - 4], seed))
        assert head[4] == frames
        frames += head[5]
        position = end
    assert (position, frames) == (len(data), 6)


def test_newer_version_is_named() -> None:
    data = bytearray(chunk_bytes())
    data[4] = VERSION + 1
    with pytest.raises(StoreError, match=f"version {VERSION + 1}, this headrace reads {VERSION}"):
        unpack(bytes(data))


@pytest.mark.parametrize("data", [b"", b"HDRC", b"PK\x03\x04" + bytes(100)])
def test_other_bytes_are_no_chunk(data: bytes) -> None:
    with pytest.raises(StoreError, match="expected a headrace chunk"):
        unpack(data)


def test_mutants_are_refused_by_name_and_never_decoded() -> None:
    payload, other = chunk_bytes(), chunk_bytes(1.1, (1, 0, 0))
    counts = decode_mutants(payload, other, 600, 1, decode_group(unpack(payload)))
    assert counts["wrong"] == 0
    assert counts["refused"] >= 599


def test_mutants_do_not_crash_hang_or_allocate() -> None:
    """In a process of its own with 512 MiB of address space beyond what it starts with."""
    code = (
        "import resource, numpy as np\n"
        "from headrace.flows.benchmarks.torture import decode_mutants\n"
        "from headrace.storage.codecs.groups import decode_group, encode_group\n"
        "from headrace.storage.codecs.layout import unpack\n"
        "x = np.cumsum(np.random.default_rng(0).standard_normal((5, 40, 40)), 1)\n"
        "a, b = (encode_group(v, [0.1] * 5, index=(k, 0, 0), codecs=('sperr', 'sz3', 'zfp')).payload"
        " for k, v in enumerate((x, -x)))\n"
        "y = decode_group(unpack(a))\n"
        "decode_mutants(a, b, 5, 0, y)\n"
        "pages = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages + 2**29,) * 2)\n"
        "print(decode_mutants(a, b, 400, 2, y)['wrong'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
