"""Predicted records: the bound holds, a reader repeats the prediction or says why not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from headrace.storage.arrays import write_chunk
from headrace.storage.codecs.groups import decode_group, encode_group
from headrace.storage.codecs.layout import unpack
from headrace.storage.codecs.predictors import PredictorSpec, register_stepper
from headrace.storage.codecs.spacetime import SpaceTimeCodec
from headrace.storage.errors import ParameterError, ShapeError, StoreError


class Decay:
    """Multiplies by ``exp(-rate dt)``: the field of the tests does exactly that."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.calls = 0

    def advance(self, previous: np.ndarray, t_previous: float, t: float) -> np.ndarray:
        self.calls += 1
        return previous * np.exp(-self.rate * (t - t_previous))


def decay(parameters: Mapping[str, Any]) -> Decay:
    return Decay(**parameters)


TIMES = (0.0, 0.1, 0.3, 0.35, 1.0, 1.2)


@pytest.fixture
def frames() -> np.ndarray:
    start = np.cumsum(np.random.default_rng(0).standard_normal((40, 50)), axis=0)
    return np.stack([start * np.exp(-0.7 * t) for t in TIMES]).astype("f4")


def test_predictions_within_the_bound_cost_only_their_record(frames: np.ndarray) -> None:
    group = encode_group(frames, [0.05] * 6, times=TIMES, predictors={"S": Decay(0.7)})
    assert [record.kind for record in group.records] == ["I", "S", "S", "S", "S", "S"]
    assert all(record.nbytes <= 72 for record in group.records[1:])
    decoded = decode_group(unpack(group.payload), predictors={"S": Decay(0.7)}.get)
    assert np.abs(decoded.astype("f8") - frames).max() <= 0.05


def test_bad_predictions_are_corrected_or_not_used(frames: np.ndarray) -> None:
    for rate in (0.5, -3.0):
        group = encode_group(frames, [0.05] * 6, times=TIMES, predictors={"A": Decay(rate)})
        decoded = decode_group(unpack(group.payload), predictors={"A": Decay(rate)}.get)
        assert np.abs(decoded.astype("f8") - frames).max() <= 0.05
        plain = encode_group(frames, [0.05] * 6)
        assert len(group.payload) <= 1.01 * len(plain.payload) + 64 * 6 + 8 * 6


def test_predictor_that_blows_up_is_left_out(frames: np.ndarray) -> None:
    group = encode_group(frames, [0.05] * 6, times=TIMES, predictors={"S": Decay(-1e6)})
    assert "S" not in {record.kind for record in group.records}


def test_one_frame_runs_the_stepper_only_inside_its_group(frames: np.ndarray) -> None:
    chunk = unpack(encode_group(frames, [0.05] * 6, times=TIMES, predictors={"S": Decay(0.7)}).payload)
    stepper = Decay(0.7)
    decode_group(chunk, 2, 3, {"S": stepper}.get)
    assert stepper.calls == 2
    decode_group(chunk, 0, 1, {"S": stepper}.get)
    assert stepper.calls == 2


def test_another_stepper_is_found_out(frames: np.ndarray) -> None:
    chunk = unpack(encode_group(frames, [0.05] * 6, times=TIMES, predictors={"S": Decay(0.7)}).payload)
    with pytest.raises(StoreError, match="predicted otherwise here"):
        decode_group(chunk, predictors={"S": Decay(0.7001)}.get)
    with pytest.raises(StoreError, match="no stepper was given"):
        decode_group(chunk)


def test_times_are_needed(frames: np.ndarray) -> None:
    with pytest.raises(ShapeError, match="0 times for 6 frames"):
        encode_group(frames, [0.05] * 6, predictors={"S": Decay(0.7)})


def test_zarr_finds_a_registered_stepper_by_the_name_in_the_metadata(tmp_path: Path, frames: np.ndarray) -> None:
    spec = PredictorSpec.of("S", "test-decay", rate=0.7)
    codec = SpaceTimeCodec("abs", 0.05, predictors=(spec,))
    assert SpaceTimeCodec.from_dict(codec.to_dict()) == codec
    options: dict[str, Any] = {"shape": (6, 40, 50), "chunks": (6, 40, 50), "dtype": "f4", "compressors": None}
    zarr.create_group(tmp_path / "s").create_array("u", serializer=codec, **options)
    group = encode_group(frames, [0.05] * 6, times=TIMES, predictors={"S": Decay(0.7)})
    write_chunk(tmp_path / "s", "u", (0, 0, 0), group.payload)
    array = zarr.open_array(tmp_path / "s" / "u", mode="r")
    with pytest.raises(StoreError, match="stepper 'test-decay', which is not installed here"):
        array[:]
    register_stepper("test-decay", decay)
    assert np.abs(array[3].astype("f8") - frames[3]).max() <= 0.05


@pytest.mark.parametrize(("kind", "parameters"), [("X", "{}"), ("S", "{"), ("S", "[]")])
def test_unreadable_specs(kind: str, parameters: str) -> None:
    with pytest.raises(ParameterError):
        PredictorSpec(kind, "name", parameters)
