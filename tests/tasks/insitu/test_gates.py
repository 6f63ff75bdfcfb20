"""The swinging-door guarantee, its limits, and its state; brute force is the reference."""

import json
import math
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.errors import ParameterError
from headrace.tasks.insitu.gates import KeepAll, SwingingDoor
from headrace.tasks.insitu.metrics import enstrophy, pearson
from headrace.tasks.simulate.kolmogorov import KolmogorovFlow


def stream(gate, times, rows, frames=None):
    """Indices kept, after checking that each comes with its own time and frame, once and in order."""
    rows = [np.atleast_1d(row).tolist() for row in rows]
    frames = frames or [{"w": np.array([float(i)])} for i in range(len(rows))]
    kept = []
    for i, (t, row) in enumerate(zip(times, rows, strict=True)):
        kept += gate.offer(i, float(t), row, frames[i])
    kept += gate.close()
    assert all(k.time == times[k.index] and k.frame is frames[k.index] for k in kept)
    indices = [k.index for k in kept]
    assert all(a < b for a, b in pairwise(indices))
    return indices


def tolerances(values, tolerance, relative):
    return tolerance * np.abs(values) if relative else np.full(len(values), tolerance)


def brute_force(times, values, tolerance, relative, max_gap):
    """Greedy choice by drawing every candidate line in full and measuring it at every frame between."""
    room = tolerances(values, tolerance, relative)
    kept = [0]
    for i in range(1, len(values)):
        a = kept[-1]
        line = values[a] + (values[i] - values[a]) * (times[a : i + 1] - times[a]) / (times[i] - times[a])
        if i - a > max_gap or np.any(np.abs(line - values[a : i + 1])[1:-1] > room[a + 1 : i]):
            kept.append(i - 1)
    if len(values) > 1:
        kept.append(len(values) - 1)
    return kept


metric_values = st.one_of(
    st.floats(-1e6, 1e6),
    st.floats(-1.0, 1.0),
    st.sampled_from([0.0, 1.0, 1.0 + 1e-15, 0.1, 5e-324, 1e-300]),
    st.floats(allow_nan=False, allow_infinity=False),
)


@st.composite
def streams(draw):
    gaps = draw(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
    times = draw(st.sampled_from([0.0, -1e3, 1e9])) + np.cumsum(gaps)
    times = times[np.concatenate([[True], np.diff(times) > 0])]
    count = draw(st.integers(1, 3))
    smooth = draw(st.booleans())
    values = np.array([[draw(metric_values) for _ in range(count)] for _ in times])
    if smooth:  # drifts and kinks rather than noise, so that lines are long
        values = np.cumsum(np.clip(values, -1, 1).round(1), axis=0) + draw(st.sampled_from([0.0, 100.0]))
    return times, values


@settings(max_examples=300)
@given(
    data=streams(),
    tolerance=st.one_of(st.just(0.0), st.floats(1e-12, 1e3), st.sampled_from([1e-16, 1e-15, 1e-14])),
    relative=st.booleans(),
    max_gap=st.integers(1, 70),
)
def test_lines_between_kept_frames_stay_within_the_tolerance(data, tolerance, relative, max_gap):
    times, values = data
    kept = stream(SwingingDoor(tolerance, relative, max_gap), times, values)
    assert kept[0] == 0
    assert kept[-1] == len(times) - 1
    assert all(b - a <= max_gap for a, b in pairwise(kept))
    for column in values.T:
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(np.interp(times, times[kept], column[kept]) - column)
        error[kept] = 0.0  # np.interp may overflow between huge neighbours, at whose ends it is exact
        assert np.all(error <= tolerances(column, tolerance, relative))


@settings(max_examples=60)
@given(data=streams(), tolerance=st.floats(1e-6, 1.0), stop=st.integers(0, 60))
def test_the_guarantee_covers_frames_still_open_when_the_stream_ends(data, tolerance, stop):
    times, values = data[0][: stop + 1], data[1][: stop + 1, :1]
    gate = SwingingDoor(tolerance, relative=False)
    kept = []
    for i, (t, row) in enumerate(zip(times, values, strict=True)):
        kept += [k.index for k in gate.offer(i, t, row.tolist(), {})]
    tail = [k.index for k in gate.close()]
    assert tail == ([] if len(times) == 1 else [len(times) - 1])
    open_ones = slice(kept[-1], None)
    ends = [kept[-1], *tail]
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(np.interp(times[open_ones], times[ends], values[ends, 0]) - values[open_ones, 0])
    assert np.all(error[1:-1] <= tolerance)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("max_gap", [5, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_kept_frames_are_those_of_brute_force(seed, max_gap, relative):
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.uniform(0.5, 1.5, 150))
    values = 5 + np.cumsum(np.cumsum(rng.standard_normal(150)) * 0.01) + 0.02 * rng.standard_normal(150)
    tolerance = 0.02 if relative else 0.08
    kept = stream(SwingingDoor(tolerance, relative, max_gap), times, values)
    assert kept == brute_force(times, values, tolerance, relative, max_gap)
    assert 3 < len(kept) < 100


def test_straight_lines_and_constants_need_two_frames():
    times = np.arange(50) * 0.25
    assert stream(SwingingDoor(1e-6), times, 3 + 2 * times) == [0, 49]
    assert stream(SwingingDoor(0.0), times, np.full(50, 0.1)) == [0, 49]
    assert stream(SwingingDoor(0.0), times, np.zeros(50)) == [0, 49]


def test_the_frame_before_a_kink_is_kept():
    values = np.concatenate([np.zeros(10), np.arange(1.0, 11)])
    assert stream(SwingingDoor(1e-3, relative=False), np.arange(20.0), values) == [0, 9, 19]


def test_tolerance_below_rounding_keeps_what_moves():
    values = 1e6 + np.arange(10) * 1e-9
    assert stream(SwingingDoor(1e-12, relative=False), np.arange(10.0), values) == list(range(10))


def test_a_step_too_small_for_a_slope_is_kept():
    assert stream(SwingingDoor(0.0), np.arange(4.0), np.array([0.0, 0.0, 5e-324, 0.0])) == [0, 2, 3]


def test_no_gap_is_longer_than_allowed():
    assert stream(SwingingDoor(1.0, max_gap=4), np.arange(11.0), np.ones(11)) == [0, 4, 8, 10]
    assert stream(SwingingDoor(1.0, max_gap=1), np.arange(4.0), np.ones(4)) == [0, 1, 2, 3]


def test_any_of_several_metrics_closes_the_door():
    times = np.arange(30.0)
    level, kinked = np.ones(30), 10 + np.maximum(times - 12, 0)
    both = stream(SwingingDoor(1e-3), times, np.column_stack([level, kinked]))
    assert both == stream(SwingingDoor(1e-3), times, kinked) == [0, 12, 29]
    assert stream(SwingingDoor(1e-3), times, np.column_stack([kinked[::-1], kinked])) == [0, 12, 17, 29]


def turning_frames(count, step):
    """A wave that travels: the correlation of two frames is the cosine of the phase between them."""
    x = np.arange(64) * (2 * np.pi / 64)
    return [{"still": np.ones(64), "wave": np.sin(x + step * i).astype(np.float32)} for i in range(count)]


def test_correlation_ends_a_line_that_the_metric_would_go_on_with():
    frames = turning_frames(30, 0.1)
    gate = SwingingDoor(1.0, c_min=0.9, correlate="wave")
    kept = stream(gate, np.arange(30.0), np.ones(30), frames)
    assert kept == [0, 4, 8, 12, 16, 20, 24, 28, 29]  # cos 0.4 > 0.9 > cos 0.5
    by_default = stream(SwingingDoor(1.0, c_min=0.9), np.arange(30.0), np.ones(30), frames)
    assert by_default == [0, 29]  # the first variable stands still


def test_frames_unlike_their_neighbours_are_all_kept():
    kept = stream(SwingingDoor(1.0, c_min=0.9, correlate="wave"), np.arange(12.0), np.ones(12), turning_frames(12, 0.8))
    assert kept == list(range(12))


@pytest.mark.parametrize("step", [0.05, 0.13, 0.3, 0.5])
def test_dropped_frames_correlate_with_the_kept_one_before(step):
    rng = np.random.default_rng(2)
    frames = turning_frames(60, step)
    kept = stream(SwingingDoor(0.05, c_min=0.9, correlate="wave"), np.arange(60.0), 1 + 0.1 * rng.random(60), frames)
    for a, b in pairwise(kept):
        for k in range(a + 1, b):
            assert pearson(frames[k]["wave"], frames[a]["wave"]) >= 0.9


def test_variable_to_correlate_must_be_there():
    gate = SwingingDoor(1.0, c_min=0.9, correlate="salt")
    gate.offer(0, 0.0, [1.0], {"wave": np.arange(3.0)})
    with pytest.raises(ParameterError, match=r"'salt'.*'wave'"):
        gate.offer(1, 1.0, [1.0], {"wave": np.arange(3.0)})


@pytest.mark.parametrize("c_min", [None, 0.95])
@pytest.mark.parametrize("stop", range(41))
def test_a_restored_gate_goes_on_bit_for_bit(stop, c_min):
    rng = np.random.default_rng(4)
    times = np.cumsum(rng.uniform(0.1, 1, 40))
    rows = np.column_stack([1 + np.cumsum(rng.standard_normal(40)) * 0.01, np.sin(times / 3)])
    frames = turning_frames(40, 0.04)

    def make():
        return SwingingDoor(0.02, max_gap=9, c_min=c_min, correlate="wave", names=["enstrophy", "mean"])

    def offer(gate, begin, end):
        kept = []
        for i in range(begin, end):
            kept += gate.offer(i, times[i], rows[i].tolist(), frames[i])
        return kept

    whole = make()
    expected = [*offer(whole, 0, 40), *whole.close()]
    first, second = make(), make()
    kept = offer(first, 0, stop)
    arrays, meta = first.state()
    second.restore({name: array.copy() for name, array in arrays.items()}, json.loads(json.dumps(meta)))
    kept += [*offer(second, stop, 40), *second.close()]
    assert [(k.index, k.time) for k in kept] == [(k.index, k.time) for k in expected]
    for a, b in zip(kept, expected, strict=True):
        assert a.frame.keys() == b.frame.keys()
        assert all(a.frame[name].tobytes() == b.frame[name].tobytes() for name in a.frame)


def test_saved_state_of_other_settings_is_refused():
    arrays, meta = SwingingDoor(1e-3).state()
    with pytest.raises(ParameterError, match=r"tolerance=0\.001; 0\.002"):
        SwingingDoor(2e-3).restore(arrays, meta)
    with pytest.raises(ParameterError, match="swinging-door"):
        KeepAll().restore(arrays, meta)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_metric_that_is_not_finite_is_named_with_its_time(value):
    gate = SwingingDoor(1e-3, names=["mean", "enstrophy"])
    gate.offer(0, 0.0, [1.0, 1.0], {})
    with pytest.raises(ParameterError, match=r"metric 'enstrophy' is not finite at t=0\.5"):
        gate.offer(1, 0.5, [1.0, value], {})


@pytest.mark.parametrize("make", [KeepAll, lambda: SwingingDoor(1e-3)])
@pytest.mark.parametrize("time", [1.25, 1.0])
def test_time_that_does_not_increase_is_named_with_the_one_before(make, time):
    gate = make()
    gate.offer(0, 0.0, [1.0], {})
    gate.offer(1, 1.25, [1.0], {})
    with pytest.raises(ParameterError, match=rf"frame 2 at t={time} follows frame 1 at t=1\.25"):
        gate.offer(2, time, [1.0], {})
    with pytest.raises(ParameterError, match="time of frame 2 is nan"):
        gate.offer(2, math.nan, [1.0], {})


def test_number_of_metrics_is_fixed():
    with pytest.raises(ParameterError, match="0 metrics"):
        SwingingDoor(1e-3).offer(0, 0.0, [], {})
    gate = SwingingDoor(1e-3)
    gate.offer(0, 0.0, [1.0, 2.0], {})
    with pytest.raises(ParameterError, match="1 metrics came"):
        gate.offer(1, 1.0, [1.0], {})


@pytest.mark.parametrize("make", [KeepAll, lambda: SwingingDoor(1e-3)])
def test_closed_gates_take_nothing_and_give_nothing(make):
    gate = make()
    assert gate.close() == gate.close() == []
    with pytest.raises(ParameterError, match="closed gate"):
        gate.offer(0, 0.0, [1.0], {})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tolerance": -1e-3}, r"tolerance -0\.001"),
        ({"tolerance": math.nan}, "tolerance nan"),
        ({"max_gap": 0}, "max_gap=0"),
        ({"c_min": 1.5}, r"c_min=1\.5"),
    ],
)
def test_bad_settings_are_named(arguments, text):
    with pytest.raises(ParameterError, match=text):
        SwingingDoor(**{"tolerance": 1e-3, **arguments})


def test_keep_all_keeps_all_even_frames_without_a_finite_value_and_resumes():
    gate = KeepAll()
    assert stream(gate, [0.0, 1.0, 3.0], [1.0, math.nan, 2.0]) == [0, 1, 2]
    arrays, meta = gate.state()
    resumed = KeepAll()
    resumed.restore(arrays, json.loads(json.dumps(meta)))
    with pytest.raises(ParameterError, match=r"t=3\.0"):
        resumed.offer(3, 3.0, [1.0], {})
    fresh = KeepAll()
    fresh.restore(*KeepAll().state())
    assert [k.index for k in fresh.offer(0, -5.0, [1.0], {})] == [0]


@pytest.mark.slow
def test_on_decaying_turbulence_it_beats_uniform_sampling_at_equal_count():
    """400 snapshots at 256 x 256: 33 kept in the trial this gate was chosen by, at 1/6 of the error."""
    run = islice(KolmogorovFlow(256, forced=False).snapshots(), 400)
    times, curve = map(np.array, zip(*[(time, enstrophy(f["vorticity"])) for _, time, f in run], strict=True))
    kept = stream(SwingingDoor(1e-3), times, curve)
    uniform = np.unique(np.round(np.linspace(0, 399, len(kept))).astype(int))

    def largest_error(chosen):
        return np.max(np.abs(np.interp(times, times[chosen], curve[chosen]) / curve - 1))

    assert len(kept) == pytest.approx(33, abs=1)
    assert len(uniform) == len(kept)
    assert largest_error(kept) <= 1e-3
    assert largest_error(kept) <= largest_error(uniform) / 2
