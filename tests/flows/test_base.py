import subprocess
import sys

import pytest

from headrace.flows._base import Done, FlowParams, UnitResults, inline, lazy_flow
from headrace.flows._catalog import FLOWS, command_name, find_flow, load_flow, summary
from headrace.storage.errors import ParameterError, UnitError


def fail(error: Exception) -> None:
    raise error


def test_inline_hands_the_error_to_whoever_asks_for_the_result() -> None:
    job = inline(fail, ValueError("no"))
    assert job.done()
    with pytest.raises(ValueError, match="no"):
        job.result()


def test_results_name_the_failed_units_and_keep_the_others() -> None:
    results = UnitResults()
    assert results.take("a.0", Done(7)) == 7
    assert results.take("a.1", Done(error=ZeroDivisionError("by zero"))) is None
    assert results.take("a.2", Done(9)) == 9
    with pytest.raises(UnitError, match=r"1 of 3 units .*a\.1.*ZeroDivisionError: by zero.*same command again"):
        results.check()


def test_wrong_input_found_by_a_unit_is_raised_at_once() -> None:
    with pytest.raises(ParameterError, match="not finite"):
        UnitResults().take("a.0", Done(error=ParameterError("not finite")))


def test_too_many_failures_end_the_run() -> None:
    results = UnitResults(limit=3)
    results.take("0", Done(error=OSError(28, "No space left on device")))
    results.take("1", Done(error=OSError(28, "No space left on device")))
    with pytest.raises(UnitError, match="No space left"):
        results.take("2", Done(error=OSError(28, "No space left on device")))


def test_nothing_failed_raises_nothing() -> None:
    results = UnitResults()
    results.take("0", Done(1))
    results.check()


@pytest.mark.parametrize("spec", ["auto", "inline", "threads:4", "processes:2", "dask", "dask:3", "dask:tcp://h:1"])
def test_executor_forms_are_accepted(spec: str) -> None:
    assert FlowParams(executor=spec).executor == spec


@pytest.mark.parametrize(
    "values",
    [
        {"executor": "threads:0"},
        {"executor": "ray"},
        {"executor": "slurm:"},
        {"device": "gpu"},
        {"seed": -1},
        {"no_such": 1},
    ],
)
def test_bad_common_parameters_are_refused_by_name(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        FlowParams.model_validate(values)


def test_volatile_fields_are_fields() -> None:
    assert set(FlowParams.model_fields) >= FlowParams.VOLATILE


@pytest.mark.parametrize("flow", FLOWS)
def test_flows_are_found_with_a_summary(flow: str) -> None:
    assert find_flow(command_name(flow)) == flow
    assert summary(flow).endswith(".")
    assert load_flow(flow).__doc__.startswith(summary(flow))


def test_a_misspelt_flow_is_answered_with_the_nearest() -> None:
    with pytest.raises(ParameterError, match=r"no flow 'compres'.*Did you mean 'compress'\?"):
        find_flow("compres")


def test_a_flow_module_has_no_other_lazy_names() -> None:
    attribute = lazy_flow("headrace.flows.compress")
    with pytest.raises(AttributeError, match="no attribute 'flow'"):
        attribute("flow")


@pytest.mark.parametrize("flow", FLOWS)
def test_importing_a_flow_imports_no_engine(flow: str) -> None:
    code = f"import sys, headrace.flows.{flow}; print([m for m in ('prefect', 'distributed') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
