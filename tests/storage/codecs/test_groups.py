"""A group of frames keeps its bound, whatever is in it."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headrace.flows.benchmarks.torture import FIELD_COUNT
from headrace.storage.codecs.bounds import Bound, FrameStatistics
from headrace.storage.codecs.groups import decode_group, encode_group
from headrace.storage.codecs.layout import unpack
from headrace.storage.errors import ParameterError, ShapeError


def moving_wave(frames: int, n: int = 48, speed: float = 0.02) -> np.ndarray:
    x = np.linspace(0, 2 * np.pi, n, endpoint=False)
    return np.stack([np.sin(3 * x[:, None] + 2 * x - speed * k) for k in range(frames)]).astype("f4")


def turbulence(frames: int) -> np.ndarray:
    from headrace.tasks.simulate.kolmogorov import KolmogorovFlow

    stream = KolmogorovFlow(64).snapshots()
    return np.stack([next(stream)[2]["vorticity"] for _ in range(frames)])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    frames=npst.arrays(
        st.sampled_from(["f4", "f8", "i4", "?", "c8", "f2"]),
        npst.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=12),
    ),
    limit=st.floats(1e-9, 1e9),
)
def test_every_finite_value_is_within_the_limit_and_others_are_identical(frames: np.ndarray, limit: float) -> None:
    group = encode_group(frames, [limit] * len(frames))
    decoded = decode_group(unpack(group.payload))
    assert decoded.dtype == frames.dtype
    finite = np.isfinite(frames)
    assert frames[~finite].tobytes() == decoded[~finite].tobytes()
    wide = "c16" if frames.dtype.kind == "c" else "f8"
    with np.errstate(over="ignore"):
        errors = np.abs(frames[finite].astype(wide) - decoded[finite].astype(wide))
    assert (errors <= limit).all()


def test_torture_set_has_no_violation_and_the_process_ends_well() -> None:
    """In a process of its own: a codec that crashes does so at exit."""
    code = (
        "import json, sys\n"
        "from headrace.flows.benchmarks.torture import cases, violations\n"
        "found = [v for case in cases() for v in violations(case)]\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    assert FIELD_COUNT == 200


@pytest.mark.parametrize("measure", ["max", "rms"])
@pytest.mark.parametrize("value", [1e-2, 1e-4])
def test_reported_errors_are_the_errors(measure: str, value: float) -> None:
    frames = turbulence(6)
    bound = Bound("l2" if measure == "rms" else "rel", value)
    limits = [bound.limit(FrameStatistics.of(frame)) for frame in frames]
    group = encode_group(frames, limits, measure=bound.measure)
    decoded = decode_group(unpack(group.payload)).astype("f8")
    errors = np.abs(decoded - frames).reshape(len(frames), -1)
    norms = np.linalg.norm(frames.reshape(len(frames), -1).astype("f8"), axis=1)
    np.testing.assert_allclose(group.max_error, errors.max(axis=1), rtol=1e-12)
    np.testing.assert_allclose(group.rel_l2, np.linalg.norm(errors, axis=1) / norms, rtol=1e-12)
    measured = errors.max(axis=1) if measure == "max" else np.sqrt(np.mean(errors**2, axis=1))
    assert (measured <= limits).all()


@pytest.mark.parametrize("mode", ["rel", "l2"])
def test_mixture_is_never_larger_than_its_best_single_codec(mode: str) -> None:
    frames = turbulence(8)
    bound = Bound(mode, 1e-3)
    limits = [bound.limit(FrameStatistics.of(frame)) for frame in frames]

    def size(codecs: tuple[str, ...]) -> int:
        return len(encode_group(frames, limits, measure=bound.measure, codecs=codecs).payload)

    best = min(size((codec,)) for codec in ("sperr", "sz3", "zfp", "spectrum", "lorenzo"))
    assert size(("sperr", "spectrum", "sz3", "lorenzo", "zfp")) <= 1.01 * best + 64 * len(frames)


def test_slow_change_is_predicted_and_decoded_from_the_middle() -> None:
    rough = np.random.default_rng(0).standard_normal((48, 48)).astype("f4")
    frames = 0.05 * moving_wave(12) + rough
    group = encode_group(frames, [1e-3] * 12, codecs=("spectrum",))
    chunk = unpack(group.payload)
    assert "P" in {record.kind for record in chunk.records}
    whole = decode_group(chunk)
    for start, stop in [(0, 1), (5, 6), (3, 9), (11, 12)]:
        np.testing.assert_array_equal(decode_group(chunk, start, stop), whole[start:stop])


def test_land_mask_that_stays_costs_almost_nothing() -> None:
    frames = moving_wave(8)
    frames[:, 10:30, 5:25] = np.nan
    once = encode_group(frames[:1], [1e-3], codecs=("sz3",))
    group = encode_group(frames, [1e-3] * 8, codecs=("sz3",))
    masks = [len(record.mask) for record in group.records]
    assert sum(masks[1:]) <= 40 * (len(masks) - 1)
    assert len(once.records[0].mask) > 0
    assert np.isnan(decode_group(unpack(group.payload))).sum() == 8 * 400


def test_constant_frames_take_one_value() -> None:
    group = encode_group(np.full((5, 100, 100), 3.25, "f4"), [1e-3] * 5)
    assert len(group.payload) < 5 * 60 + 60
    assert (decode_group(unpack(group.payload)) == 3.25).all()


def test_zero_limit_is_lossless() -> None:
    frames = turbulence(2)
    group = encode_group(frames, [0.0, 0.0])
    assert decode_group(unpack(group.payload)).tobytes() == frames.tobytes()
    assert (group.max_error == 0).all()


def test_wrong_limits_are_refused() -> None:
    frames = moving_wave(2)
    with pytest.raises(ShapeError, match="one limit per frame"):
        encode_group(frames, [1.0])
    with pytest.raises(ParameterError, match="limits must be"):
        encode_group(frames, [1.0, -1.0])
    with pytest.raises(ParameterError, match="limits must be"):
        encode_group(frames, [1.0, np.nan])


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_bound_must_be_a_positive_number(value: float) -> None:
    with pytest.raises(ParameterError, match=f"bound must be > 0 and finite, got {value}"):
        Bound("abs", value)


def test_relative_bounds_refer_to_the_whole_frame() -> None:
    frame = np.array([[0.0, np.nan], [4.0, -4.0]])
    statistics = FrameStatistics.of(frame)
    assert Bound("rel", 0.1).limit(statistics) == pytest.approx(0.8)
    assert Bound("l2", 0.1).limit(statistics) == pytest.approx(0.1 * np.sqrt(32 / 3))
    assert Bound("abs", 0.1).limit(statistics) == 0.1
    assert Bound("rel", 0.1).limit(FrameStatistics.of(np.full((3, 3), 2.0))) == 0.0
