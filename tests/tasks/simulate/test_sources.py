"""What every built-in simulation promises to the stream that reads it."""

import subprocess
import sys
from itertools import islice, pairwise

import numpy as np
import pytest

from headrace.storage.errors import ShapeError
from headrace.tasks.simulate import SIMULATIONS

SIZES = {"kolmogorov-forced": 32, "kolmogorov-decaying": 32, "kdv": 128}


@pytest.fixture(params=sorted(SIMULATIONS))
def name(request):
    return request.param


def build(name, interval=0.05, seed=3):
    return SIMULATIONS[name](SIZES[name], interval, seed)


def test_snapshots_are_fresh_float32_arrays_on_a_regular_time_axis(name):
    frames = list(islice(build(name).snapshots(), 4))
    assert [index for index, _, _ in frames] == [0, 1, 2, 3]
    assert [time for _, time, _ in frames] == pytest.approx([0.0, 0.05, 0.1, 0.15])
    fields = [fields for _, _, fields in frames]
    (variable,) = fields[0]
    assert all(list(f) == [variable] and f[variable].dtype == np.float32 for f in fields)
    assert not any(np.shares_memory(a[variable], b[variable]) for a, b in pairwise(fields))
    assert np.abs(fields[3][variable] - fields[0][variable]).max() > 0.01


def test_template_declares_what_the_snapshots_are(name):
    simulation = build(name)
    template = simulation.template()
    _, _, fields = next(simulation.snapshots())
    assert set(template.data_vars) == set(fields)
    for variable, array in template.data_vars.items():
        assert array.dims[0] == "time"
        assert array.shape == (0, *fields[variable].shape)
        assert array.dtype == fields[variable].dtype
        assert {"units", "long_name"} <= set(array.attrs)
    assert all("units" in template[coordinate].attrs for coordinate in template.coords)
    assert template.attrs["seed"] == 3


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_a_restart_continues_bit_for_bit(name, stop):
    whole = list(islice(build(name).snapshots(), 9))
    first = build(name)
    list(islice(first.snapshots(), stop))
    saved = first.state()
    list(islice(first.snapshots(), 3))  # going on does not change what was saved
    resumed = list(islice(build(name, seed=4).snapshots(saved), 9 - stop))
    for (i, t, a), (j, s, b) in zip(whole[stop:], resumed, strict=True):
        assert (i, t) == (j, s)
        for variable in a:
            np.testing.assert_array_equal(a[variable], b[variable])


def test_state_of_another_grid_is_refused(name):
    other = SIMULATIONS[name](SIZES[name] * 2, 0.05, 0)
    next(other.snapshots())
    with pytest.raises(ShapeError, match="parameters of the run"):
        next(build(name).snapshots(other.state()))


def test_solver_seconds_accumulate(name):
    simulation = build(name)
    source = simulation.snapshots()
    next(source)
    assert simulation.stepper_seconds == 0
    next(source)
    first = simulation.stepper_seconds
    list(islice(source, 5))
    assert simulation.stepper_seconds > first > 0


def test_the_table_of_simulations_loads_no_solver():
    code = (
        "import sys, headrace.tasks.simulate as s; heavy = ('numpy', 'scipy', 'xarray', 'prefect', 'distributed'); "
        "print([m for m in heavy if m in sys.modules], len(s.SIMULATIONS))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[] 3"
