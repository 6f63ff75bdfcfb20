"""Advected prediction against solutions known in closed form and against the solver."""

from itertools import pairwise

import numpy as np
import pytest

from headrace.storage.errors import ParameterError
from headrace.tasks.insitu.advect import AdvectedVorticity, advected_vorticity
from headrace.tasks.simulate.kdv import KdVSolitons
from headrace.tasks.simulate.kolmogorov import KolmogorovFlow
from headrace.tasks.simulate.steppers import SolverStepper, kdv, kolmogorov


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a.astype("f8") - b) / np.linalg.norm(b))


def test_steady_vortex_decays_at_its_own_rate() -> None:
    """cos x + cos y moves nothing (it is a function of its stream function) and decays as exp(-(nu + mu) t)."""
    x = np.arange(64) * 2 * np.pi / 64
    w = np.cos(x)[None, :] + np.cos(x)[:, None]
    predictor = AdvectedVorticity(viscosity=0.1, drag=0.05)
    errors = [relative(predictor.advance(w, 0.0, t), w * np.exp(-0.15 * t)) for t in (0.02, 0.04, 0.08)]
    assert errors[2] < 1e-3
    assert all(4 < late / early < 12 for early, late in pairwise(errors)), "second order in time"


def test_forcing_adds_its_curl() -> None:
    w = np.zeros((64, 64))
    y = np.arange(64) * 2 * np.pi / 64
    moved = AdvectedVorticity(forcing=4.0, forcing_wavenumber=4).advance(w, 0.0, 1e-3)
    np.testing.assert_allclose(moved, np.broadcast_to(-4e-3 * np.cos(4 * y)[:, None], (64, 64)), atol=1e-9)


def test_prediction_is_much_closer_than_the_frame_before() -> None:
    flow = KolmogorovFlow(128)
    stream = flow.snapshots()
    frames = [next(stream)[2]["vorticity"] for _ in range(41)]
    before, after = frames[-2:]
    name, parameters = flow.predictors()["A"]
    assert name == "advected-vorticity"
    predicted = advected_vorticity(parameters).advance(before, 39 * 0.025, 40 * 0.025)
    assert relative(predicted, after) < relative(before, after) / 3
    blind = AdvectedVorticity().advance(before, 39 * 0.025, 40 * 0.025)
    assert relative(predicted, after) < relative(blind, after)


def test_solver_repeats_its_own_step() -> None:
    flow = KolmogorovFlow(64)
    stream = flow.snapshots()
    frames = [next(stream)[2]["vorticity"] for _ in range(13)]
    name, parameters = flow.predictors()["S"]
    assert name == "kolmogorov"
    predicted = kolmogorov(parameters).advance(frames[4], 4 * 0.025, 12 * 0.025)
    assert relative(predicted, frames[12]) < 1e-5


def test_kdv_stepper_repeats_the_equation() -> None:
    waves = KdVSolitons(256)
    stream = waves.snapshots()
    frames = [next(stream)[2]["u"] for _ in range(5)]
    name, parameters = waves.predictors()["S"]
    assert name == "kdv"
    assert relative(kdv(parameters).advance(frames[1], 0.05, 0.2), frames[4]) < 1e-5


def test_times_between_steps_give_no_prediction() -> None:
    stepper = SolverStepper(KolmogorovFlow(32))
    assert np.isnan(stepper.advance(np.zeros((32, 32), "f4"), 0.0, 0.0251)).all()


def test_flow_that_moves_too_far_gives_no_prediction() -> None:
    assert np.isnan(AdvectedVorticity().advance(1e9 * np.random.default_rng(0).standard_normal((32, 32)), 0, 1)).all()


def test_wrong_shapes_and_parameters_are_named() -> None:
    with pytest.raises(ParameterError, match="expected a square"):
        AdvectedVorticity().advance(np.zeros((4, 5)), 0, 1)
    with pytest.raises(ParameterError, match="do not fit"):
        advected_vorticity({"colour": 1})
    with pytest.raises(ParameterError, match="'seed' is unknown"):
        kolmogorov({"seed": 1})
    with pytest.raises(ParameterError, match="length > 0"):
        AdvectedVorticity(length=0)
