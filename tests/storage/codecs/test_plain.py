"""Single codecs: what they promise for a block, and where they must not be called."""

import numpy as np
import pytest

from headrace.storage.codecs.plain import LOSSY, decode_plain, eligible, encode_plain
from headrace.storage.codecs.search import Goal, meet, meet_l2
from headrace.storage.codecs.transforms import decode_lossless, encode_lossless, inflate
from headrace.storage.errors import ParameterError, StoreError


def smooth(shape: tuple[int, ...], dtype: str = "f4", seed: int = 0) -> np.ndarray:
    field = np.random.default_rng(seed).standard_normal(shape)
    for axis in range(field.ndim):
        field = np.cumsum(field, axis=axis)
    return field.astype(dtype)


@pytest.mark.parametrize("codec", ["sperr", "sz3", "zfp", "lorenzo"])
@pytest.mark.parametrize("shape", [(40, 50), (1, 40, 50), (9, 16, 20)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_pointwise_codecs_keep_their_tolerance_on_smooth_fields(codec: str, shape: tuple[int, ...], dtype: str) -> None:
    field = smooth(shape, dtype)
    decoded = decode_plain(codec, encode_plain(codec, field, 0.05), shape, field.dtype)
    assert decoded.shape == shape
    assert decoded.dtype == field.dtype
    assert np.abs(decoded.astype(np.float64) - field).max() <= 0.05 * (1 + 1e-6) + np.abs(field).max() * 1e-7


@pytest.mark.parametrize("shape", [(64,), (33, 20), (7, 8, 9)])
def test_spectrum_error_is_that_of_rounding_each_coefficient(shape: tuple[int, ...]) -> None:
    """Parseval: the squared error of the field is the squared error of the full set of coefficients."""
    field, step = smooth(shape, "f8"), 0.3
    decoded = decode_plain("spectrum", encode_plain("spectrum", field, step), shape, field.dtype)
    full = np.fft.fftn(field, norm="ortho")
    rounded = step * (np.rint(full.real / step) + 1j * np.rint(full.imag / step))
    assert np.sum((decoded - field) ** 2) == pytest.approx(np.sum(np.abs(full - rounded) ** 2), rel=1e-6)


def test_lorenzo_differences_undo_along_every_axis() -> None:
    field = smooth((5, 6, 7), "f8")
    decoded = decode_plain("lorenzo", encode_plain("lorenzo", field, 0.01), field.shape, field.dtype)
    np.testing.assert_array_equal(decoded, np.rint(field / 0.02) * 0.02)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "i8", "u8", "?"])
def test_lossless_returns_every_bit(dtype: str) -> None:
    raw = np.random.default_rng(1).bytes(8 * 60)
    block = np.frombuffer(raw, "u1")[: 60 * np.dtype(dtype).itemsize]
    block = (block % 2).astype("?")[:60] if dtype == "?" else block.view(dtype)
    block = block.reshape(5, 12)
    assert decode_lossless(encode_lossless(block), block.shape, block.dtype).tobytes() == block.tobytes()


@pytest.mark.parametrize(
    ("codec", "shape", "dtype", "magnitude", "tolerance"),
    [
        ("sperr", (100,), "f4", 1.0, 1e-3),
        ("sperr", (3, 4, 5, 6), "f4", 1.0, 1e-3),
        ("sperr", (30, 40), "i4", 1.0, 1e-3),
        ("sperr", (30, 40), ">f4", 1.0, 1e-3),
        ("sperr", (30, 40), "f4", 1e30, 1e-3),
        ("sz3", (2, 3, 4, 5, 6), "f4", 1.0, 1e-3),
        ("zfp", (1, 1), "f4", 1.0, 1e-3),
        ("lorenzo", (30, 40), "f4", 1.0, 1e-12),
        ("spectrum", (30, 40), "f4", 1.0, 0.0),
    ],
)
def test_codecs_are_kept_from_what_they_cannot_take(
    codec: str, shape: tuple[int, ...], dtype: str, magnitude: float, tolerance: float
) -> None:
    assert not eligible(codec, shape, np.dtype(dtype), magnitude, tolerance)


def test_unknown_codec_is_named() -> None:
    with pytest.raises(ParameterError, match="'gzip' is unknown; choose from"):
        eligible("gzip", (4, 4), np.dtype("f4"), 1.0, 0.1)


@pytest.mark.parametrize("codec", LOSSY)
def test_search_meets_a_root_mean_square_target_closely(codec: str) -> None:
    field = smooth((64, 64))
    target = 1e-3 * float(np.sqrt(np.mean(field.astype("f8") ** 2)))
    found = meet_l2(codec, field, target)
    assert found is not None
    payload, decoded, tolerance = found
    np.testing.assert_array_equal(decode_plain(codec, payload, (1, *field.shape), field.dtype)[0], decoded)
    error = float(np.sqrt(np.mean((decoded.astype("f8") - field) ** 2)))
    assert error <= target
    assert error >= (0.4 if codec == "zfp" else 0.97) * target, "ZFP has steps of a factor two; others come close"
    assert tolerance > 0


def test_search_counts_valid_values_only() -> None:
    field = smooth((1, 32, 32))
    valid = np.ones(field.shape, bool)
    valid[:, :16] = False
    goal = Goal("rms", np.array([0.05]), valid)
    coded = meet("sz3", field, goal)
    assert coded is not None
    difference = (coded.decoded - field)[valid].astype("f8")
    assert np.sqrt(np.mean(difference**2)) <= 0.05


def test_damaged_or_dishonest_streams_are_refused() -> None:
    payload = encode_lossless(np.arange(1000, dtype="i4"))
    with pytest.raises(StoreError):
        decode_lossless(payload, (1001,), np.dtype("i4"))
    with pytest.raises(StoreError):
        decode_lossless(payload[: len(payload) // 2], (1000,), np.dtype("i4"))
    import zlib

    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(StoreError, match="does not hold the 8 bytes"):
        inflate(bomb, 8)
