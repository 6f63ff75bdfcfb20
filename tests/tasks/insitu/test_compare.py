"""Plain codecs on sample frames: the numbers of the report, checked by an independent decode."""

from itertools import islice

import h5py
import hdf5plugin
import numpy as np
import pytest

from headrace.storage.codecs.bounds import Bound
from headrace.tasks.insitu.compare import PEERS, compare_plain, rate_distortion, tile
from headrace.tasks.simulate.kolmogorov import KolmogorovFlow


@pytest.fixture(scope="module")
def frames():
    run = KolmogorovFlow(64, forced=False, interval=0.5).snapshots()
    return [fields["vorticity"] for _, _, fields in islice(run, 1, 6, 2)]


def through_a_file(frame, tolerance, path):
    """Size and values of a frame written with the SZ3 filter into a real HDF5 file, closed and opened again."""
    with h5py.File(path, "w") as file:
        file.create_dataset("w", data=frame, chunks=frame.shape, **hdf5plugin.SZ3(absolute=tolerance))
    with h5py.File(path) as file:
        return file["w"].id.get_storage_size(), file["w"][...]


def test_results_are_those_of_files_written_with_the_codec(frames, tmp_path):
    bound = Bound("abs", 0.05)
    (result,) = compare_plain(frames, bound, ["sz3"])
    files = [through_a_file(frame, 0.05, tmp_path / f"{i}.h5") for i, frame in enumerate(frames)]
    assert result.raw_bytes == sum(frame.nbytes for frame in frames)
    assert result.nbytes == pytest.approx(sum(size for size, _ in files), rel=0.02)
    errors = np.concatenate(
        [(decoded.astype(float) - f).ravel() for f, (_, decoded) in zip(frames, files, strict=True)]
    )
    norm = np.linalg.norm(np.concatenate([f.ravel().astype(float) for f in frames]))
    assert result.max_error == pytest.approx(np.abs(errors).max(), rel=0.02)
    assert result.rel_l2 == pytest.approx(np.linalg.norm(errors) / norm, rel=0.02)
    assert result.ratio == result.raw_bytes / result.nbytes > 1
    assert result.bits_per_value == pytest.approx(32 / result.ratio)


@pytest.mark.parametrize("mode", ["abs", "rel", "l2"])
def test_the_bound_means_what_it_means_for_the_run(frames, mode):
    results = compare_plain(frames, Bound(mode, 0.01))
    assert [r.codec for r in results] == list(PEERS)
    if mode == "l2":
        smallest = {"sperr": 0.0095, "sz3": 0.0095, "zfp": 0.004}  # ZFP's tolerance goes in powers of two
        assert all(smallest[r.codec] < r.rel_l2 <= 0.01 and r.held for r in results)
    else:
        scale = 1.0 if mode == "abs" else max(np.ptp(f) for f in frames)
        assert all(r.max_error <= 0.0101 * scale for r in results)
        assert all(r.excess > 0.1 for r in results)
    assert all(r.seconds > 0 and not r.note for r in results)


def test_a_broken_bound_is_reported():
    noise = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    noise[3, 3] = 3e5  # small values that share a block of the codec with it lose their bits
    (broken,) = compare_plain([noise], Bound("abs", 1e-3), ["zfp"])
    assert broken.max_error > 1e-3
    assert not broken.held


def test_missing_values_do_not_reach_the_codec_and_do_not_count(frames):
    holed = frames[0].copy()
    holed[:20, :20] = np.nan
    holed[40, 40] = np.inf
    results = compare_plain([holed], Bound("abs", 0.05))
    assert all(np.isfinite([r.max_error, r.rel_l2]).all() and 0 < r.max_error < 0.06 for r in results)


@pytest.mark.parametrize(
    ("frame", "bound", "text"),
    [
        (np.arange(4096, dtype=np.int32).reshape(64, 64), Bound("abs", 1.0), "int32"),
        (np.ones((64, 64), np.float32), Bound("rel", 1e-3), "lossless"),
        (np.ones((4, 4, 4, 4, 4), np.float32), Bound("abs", 1e-3), "shape"),
        (np.full((64, 64), np.nan, np.float32), Bound("rel", 1e-3), "lossless"),
    ],
)
def test_frames_a_codec_cannot_take_are_explained(frame, bound, text):
    (result,) = compare_plain([frame], bound, ["sz3"])
    assert text in result.note
    assert result.ratio == result.bits_per_value == 0


def test_complex_frames_keep_the_modulus_within_the_bound():
    rng = np.random.default_rng(1)
    frame = np.cumsum(rng.standard_normal((64, 64)) + 1j * rng.standard_normal((64, 64)), axis=0)
    (result,) = compare_plain([frame], Bound("abs", 0.1), ["sz3"])
    assert result.raw_bytes == frame.nbytes
    assert 0.05 < result.max_error <= 0.1 / np.sqrt(2) * 1.001


def test_error_falls_and_size_grows_along_the_sweep(frames):
    points = rate_distortion(frames[:1])
    for codec in PEERS:
        line = [p for p in points if p.codec == codec]
        assert len(line) >= 8
        assert np.all(np.diff([p.rel_l2 for p in line]) < 0)
        assert np.all(np.diff([p.bits_per_value for p in line]) > 0)
        assert line[0].rel_l2 > 0.02
        assert line[-1].rel_l2 < 1e-3


def test_codecs_without_one_dimension_are_left_out_of_the_sweep():
    points = rate_distortion([np.sin(np.linspace(0, 9, 512)).astype(np.float32)])
    assert {p.codec for p in points} == {"sz3", "zfp"}


@pytest.mark.parametrize("shape", [(10,), (100, 3000), (50, 60, 70), ()])
def test_tiles_come_from_the_middle(shape):
    frame = np.zeros(shape)
    frame[tuple(n // 2 for n in shape)] = 1
    part = tile(frame, 5000)
    assert part.size <= 5000
    assert part.sum() == 1
    assert part.ndim == len(shape)
    assert frame.size > 5000 or part.shape == shape
