"""The only code that imports Prefect: a flow module's ``run`` as a Prefect flow.

Units of work go to the executor at once, as in a local run. What Prefect sees is coarse: at most about 25 task runs,
each named after consecutive units ("units 0-7") and waiting for them in a thread. A task run takes no data: arrays,
paths and parameters of units never pass through Prefect, which would hash, scan and keep them.
"""

import contextvars
import importlib
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace.flows._base import FlowParams, Notify, Pending, Progress, Report, Submit, ignore
from headrace.flows._catalog import command_name, find_flow
from headrace.flows._executors import open_executor
from headrace.flows._groups import Group
from headrace.flows._prefect_server import QUIET, OwnServer, check_api
from headrace.flows._text import cell, markdown
from headrace.storage.errors import ServiceError

if TYPE_CHECKING:
    from prefect import Task
    from prefect.futures import PrefectFuture

T = TypeVar("T")

TASK_RUNS = 25
PROGRESS_SECONDS = 2.0

NOTIFY: contextvars.ContextVar[Notify] = contextvars.ContextVar("headrace_notify", default=ignore)
"""Where a flow run started from the command line shows its progress, besides its artifact."""


class GroupedUnits:
    """``Submit`` that shows units to Prefect in groups. A context manager: at its end all task runs have ended."""

    def __init__(self, submit: Submit, units: int) -> None:
        self.submit, self.units = submit, units
        self.size = max(1, -(-units // TASK_RUNS))
        self.groups: list[Group] = []
        self.futures: list[PrefectFuture[None]] = []
        self.submitted = 0
        self.context = contextvars.copy_context()

    def __call__(self, fn: Callable[..., T], /, *args: Any) -> Pending[T]:
        """Start a unit in the current group."""
        number, self.submitted = self.submitted, self.submitted + 1
        unit = self.groups[-1].add(number, fn, args) if self.groups else None
        while unit is None:
            unit = self._open_group(number).add(number, fn, args)
        return unit

    def _open_group(self, first: int) -> Group:
        if len(self.groups) >= TASK_RUNS:
            self.size *= 2  # more units than planned: still few task runs
        group = Group(self.submit, self.size)
        last = max(min(first + self.size, self.units) - 1, first)
        task = group_task(group, f"unit {first}" if first == last else f"units {first}-{last}")
        # A fresh copy: units may be submitted from several threads, and a context can be entered only once.
        future = self.context.copy().run(task.submit)
        future.add_done_callback(lambda _: group.abandoned())
        self.groups.append(group)
        self.futures.append(future)
        return group

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for group in self.groups:
            if kind is None:
                group.close()
            else:
                group.cancel()
        for future in self.futures:
            future.wait()


def group_task(group: Group, name: str) -> "Task[[], None]":
    """The Prefect task of one group of units. It takes no arguments: there is nothing to hash or to keep."""
    from prefect import Task
    from prefect.cache_policies import NO_CACHE

    def work() -> None:
        group.work()

    return Task(
        work,
        name="units",
        task_run_name=name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=1,
        retry_delay_seconds=1,
        retry_condition_fn=lambda *_: bool(group.held),
    )


def progress_artifact(key: str, notify: Notify) -> Notify:
    """Show progress in Prefect at most every two seconds, and pass every notice on."""
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    artifact: Any = None
    last = time.monotonic()  # a run of less than two seconds shows none

    def show(progress: Progress) -> None:
        nonlocal artifact, last
        notify(progress)
        if progress.total is None or time.monotonic() - last < PROGRESS_SECONDS:
            return
        percent = 100 * min(progress.done / max(progress.total, 1), 1.0)
        if artifact is None:
            artifact = create_progress_artifact(
                percent, key=key, description=f"{progress.unit} {progress.note}".strip()
            )
        else:
            update_progress_artifact(artifact, percent)
        last = time.monotonic()

    return show


def publish(flow: str, report: Report) -> None:
    """Put the report into Prefect: one markdown and one table artifact, views of what is in the run folder."""
    from prefect.artifacts import create_markdown_artifact, create_table_artifact

    name = command_name(flow)
    create_markdown_artifact(markdown(report), key=f"{name}-report", description=report.title)
    table: Any = [{"name": metric, "value": cell(value)} for metric, value in report.metrics.items()]
    create_table_artifact(table, key=f"{name}-metrics", description=str(report.path))


def label(flow: str, device: str, key: str) -> None:
    """Give the current flow run the name of its run folder, and tags for its family and device."""
    from prefect.client.orchestration import get_client
    from prefect.context import get_run_context

    run: Any = getattr(get_run_context(), "flow_run", None)
    if run is None:
        return
    tags = {*run.tags, command_name(flow), "gpu" if device.startswith("cuda") else "cpu"}
    name = f"{command_name(flow)}-{key}" if key else None
    with get_client(sync_client=True) as client:
        client.update_flow_run(run.id, name=name, tags=sorted(tags))


def _collect_logs() -> None:
    """Send headrace's log records of INFO and above to Prefect, also where Prefect was set up without knowing of us."""
    from prefect.logging.handlers import APILogHandler

    logger = logging.getLogger("headrace")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)  # else Prefect collects warnings only
    if not any(isinstance(handler, APILogHandler) for handler in logger.handlers):
        logger.addHandler(APILogHandler())


def run_in_flow(flow: str, params: FlowParams) -> Report:
    """Run a flow module inside a Prefect flow run: the body of every flow."""
    module = importlib.import_module(f"headrace.flows.{flow}")
    _collect_logs()
    plan = module.plan(params)
    label(flow, plan.device, plan.key)
    notify = progress_artifact(f"{command_name(flow)}-progress", NOTIFY.get())
    with open_executor(params.executor, plan.units, retry=False) as submit, GroupedUnits(submit, plan.units) as grouped:
        report: Report = module.run(params, grouped, notify)
    if not plan.key:
        label(flow, plan.device, report.path.name)
    publish(flow, report)
    return report


@cache
def flow_attribute(module: str, name: str) -> Any:
    """Prefect flow of a flow module, with one parameter ``params`` of the module's ``Params``.

    Parameters
    ----------
    module
        Full name of the flow module, ``headrace.flows.compress``.
    name
        Name asked for; the flow is called like the module.

    Raises
    ------
    AttributeError
        Any other name.
    """
    flow = module.rpartition(".")[2]
    if name != flow:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    from prefect import Flow

    loaded = importlib.import_module(module)
    model = loaded.Params

    def body(params: FlowParams) -> Report:
        return run_in_flow(flow, params)

    body.__name__ = body.__qualname__ = flow
    body.__module__ = module
    body.__doc__ = loaded.__doc__
    body.__annotations__ = {"params": model, "return": Report}
    parameter = inspect.Parameter("params", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=model(), annotation=model)
    body.__signature__ = inspect.Signature([parameter], return_annotation=Report)  # type: ignore[attr-defined]
    return Flow(body, name=command_name(flow), persist_result=False, validate_parameters=True)


@contextmanager
def prefect_api(api: str | None) -> Iterator[None]:
    """Talk to the configured API, or to a server that lives as long as this block; quiet on the terminal."""
    if api is not None:
        check_api(api)
        with environment(QUIET), settings(api):
            yield
        return
    with OwnServer() as server, environment({**QUIET, "PREFECT_API_URL": server.url}):
        importlib.import_module("prefect.main")  # takes a second, like the start of the server
        server.wait_ready()
        with settings(server.url):
            try:
                yield
            finally:
                drain()


def drain() -> None:
    """Send what Prefect still holds back, before the server goes: else it retries for a minute at exit."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    EventsWorker.drain_all(timeout=10)
    APILogWorker.drain_all(timeout=10)


@contextmanager
def settings(api: str) -> Iterator[None]:
    """Prefect's settings for a run from the command line.

    The heartbeat thread sleeps in steps of a second and is joined at the end of the flow: without it no flow waits.
    """
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_API_URL: api, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables; what the user has set stands."""
    added = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def run_flow(flow: str, params: FlowParams, api: str | None, notify: Notify = ignore) -> Report:
    """Run a flow through Prefect from this process.

    Parameters
    ----------
    flow
        Name of the flow.
    params
        Its parameters.
    api
        Address of the Prefect API; None starts a server for this run.
    notify
        Called with the progress, besides the progress artifact.

    Raises
    ------
    ServiceError
        The API does not answer.
    HeadraceError
        Whatever the flow found wrong.
    """
    flow = find_flow(flow)
    token = NOTIFY.set(notify)
    try:
        with prefect_api(api):
            from httpx import HTTPError

            try:
                report: Report = flow_attribute(f"headrace.flows.{flow}", flow)(params)
            except HTTPError as error:
                raise ServiceError(
                    f"The Prefect API at {api} failed ({type(error).__name__}: {error}); expected it to take the run's "
                    "states. Check the server; what was finished is kept, and the same command resumes the run."
                ) from error
            return report
    finally:
        NOTIFY.reset(token)
