"""Where units of work run: in place, threads, processes, Dask (local, external) or SLURM.

Every executor satisfies ``Submit``. What a unit writes does not depend on where it ran, so executors differ in speed
only. Local workers run one thread each, with one OpenMP thread; they never see Ctrl-C (the signal is blocked in
them), do not import the caller's main script, do not look for modules in the working directory, and end when this
process ends, however it ends.
"""

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

from headrace.flows._base import Pending, Submit, inline
from headrace.storage.errors import HeadraceError, ParameterError, UnitError

logger = logging.getLogger(__name__)
T = TypeVar("T")

WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONSAFEPATH": "1",
}


TRANSIENT = frozenset({errno.EIO, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT})
"""Errors of the operating system, of network file systems above all, that may pass by themselves."""


class Retried:
    """A unit that is started once more when it fails for a reason that may pass, such as a file system hiccup."""

    def __init__(self, submit: Submit, fn: Callable[..., T], args: tuple[Any, ...]) -> None:
        self.submit, self.fn, self.args = submit, fn, args
        self.inner: Pending[Any] = _started(submit, fn, args)
        self.settled = False

    def result(self) -> Any:
        """Wait for the unit, starting it once more if need be."""
        if self.settled:
            return self.inner.result()
        try:
            return self.inner.result()
        except Exception as error:
            if not is_transient(error):
                raise
            logger.warning("%s failed (%s); trying once more", self.fn.__name__, error)
            self.inner = _started(self.submit, self.fn, self.args)
            return self.inner.result()
        finally:
            self.settled, self.args = True, ()

    def done(self) -> bool:
        """Whether the unit has ended, well or not."""
        return self.inner.done()


def _started(submit: Submit, fn: Callable[..., T], args: tuple[Any, ...]) -> Pending[T]:
    try:
        return submit(fn, *args)
    except BrokenExecutor as error:
        raise UnitError(
            "a worker process died, perhaps for want of memory, and took its pool with it; expected it to live. "
            "What finished is kept: run the same command again to resume, with fewer workers."
        ) from error


def is_transient(error: BaseException) -> bool:
    """Whether an error may pass by itself: trouble of the operating system that is not the user's to correct."""
    if isinstance(error, HeadraceError) and error.exit_status == HeadraceError.exit_status:
        return False
    return isinstance(error, ConnectionError) or (isinstance(error, OSError) and error.errno in TRANSIENT)


def retrying(submit: Submit) -> Submit:
    """Wrap ``submit`` so that transient failures are tried once more."""

    def start(fn: Callable[..., T], /, *args: Any) -> Retried:
        return Retried(submit, fn, args)

    return start


def cpu_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_spec(spec: str, units: int) -> tuple[str, str]:
    """Split an executor spec into kind and argument; ``auto`` becomes ``inline`` or ``dask`` by number of units.

    Raises
    ------
    ParameterError
        The spec is none of the known forms.
    """
    kind, _, argument = spec.partition(":")
    if kind == "auto" and not argument:
        return ("inline" if units <= 1 else "dask"), ""
    counted = kind in {"threads", "processes", "dask"} and (not argument or (argument.isdecimal() and int(argument)))
    if (kind == "inline" and not argument) or counted or (kind == "slurm" and argument):
        return kind, argument
    if kind == "dask" and "://" in argument:
        return "scheduler", argument
    raise ParameterError(
        f"executor {spec!r} is none of the known forms; expected auto, inline, threads:N, processes:N, dask:N, "
        "dask:tcp://HOST:PORT or slurm:PRESET. Choose one of these."
    )


@contextmanager
def open_executor(spec: str, units: int, *, retry: bool = True) -> Iterator[Submit]:
    """Open an executor and close it at the end, also after an error or Ctrl-C.

    Parameters
    ----------
    spec
        ``auto``, ``inline``, ``threads:N``, ``processes:N``, ``dask``, ``dask:N``, ``dask:tcp://HOST:PORT`` or
        ``slurm:PRESET``.
    units
        Number of units to come; bounds the number of workers started.
    retry
        Whether a unit that fails for a reason that may pass is tried once more.

    Raises
    ------
    ParameterError
        Unknown form.
    ServiceError
        The Dask scheduler does not answer, or its workers cannot run headrace.
    MissingExtraError
        ``slurm:`` without the extra ``hpc``.
    """
    kind, argument = parse_spec(spec, units)
    with ExitStack() as stack:
        if kind in {"dask", "processes"}:
            submit = _on_demand(stack, lambda: _open(kind, argument, max(units, 1)))
        else:
            submit = stack.enter_context(_open(kind, argument, max(units, 1)))
        yield retrying(submit) if retry else submit


def _on_demand(stack: ExitStack, opening: Callable[[], AbstractContextManager[Submit]]) -> Submit:
    """Open workers at the first unit: a run that finds all its units done starts none."""
    opened: list[Submit] = []

    def submit(fn: Callable[..., T], /, *args: Any) -> Pending[T]:
        if not opened:
            opened.append(stack.enter_context(opening()))
        return opened[0](fn, *args)

    return submit


@contextmanager
def _open(kind: str, argument: str, units: int) -> Iterator[Submit]:
    if kind == "inline":
        yield inline
        return
    workers = min(int(argument), units) if argument.isdecimal() else min(cpu_count(), units)
    if kind == "threads":
        with _pool(ThreadPoolExecutor(workers, thread_name_prefix="headrace")) as submit:
            yield submit
    elif kind == "processes":
        with _processes(workers) as submit:
            yield submit
    else:
        from headrace.flows import _dask  # imports distributed, which takes half a second

        opened = {
            "dask": lambda: _dask.local_cluster(workers),
            "scheduler": lambda: _dask.external_cluster(argument),
            "slurm": lambda: _dask.slurm_cluster(argument, units),
        }[kind]()
        with opened as submit:
            yield submit


@contextmanager
def _pool(pool: ThreadPoolExecutor | ProcessPoolExecutor) -> Iterator[Submit]:
    """Lend a pool's ``submit``; after an error, units that have not begun are dropped."""
    try:
        yield pool.submit
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown(wait=True)


@contextmanager
def _processes(workers: int) -> Iterator[Submit]:
    from multiprocessing import active_children, get_context

    others = set(active_children())
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=end_with_parent)

    def submit(fn: Callable[..., T], /, *args: Any) -> Pending[T]:
        with no_interrupts():  # a submission may start a worker
            return pool.submit(fn, *args)

    with spawning(), _pool(pool):
        try:
            yield submit
        except KeyboardInterrupt:
            for worker in set(active_children()) - others:
                worker.terminate()  # a unit cut short leaves nothing half-written behind
            raise


def end_with_parent() -> None:
    """End this worker process when its parent is gone: a pool's workers would wait for work for ever."""
    from multiprocessing import parent_process
    from threading import Thread

    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True, name="headrace-parent-watch").start()


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Threads and processes started inside never see Ctrl-C; one typed meanwhile is raised at the end.

    A signal mask is inherited, and unlike an ignored signal it costs this process nothing: only the main thread is
    left to receive the interrupt, which then closes the workers in order.
    """
    if not hasattr(os, "fork"):
        yield
        return
    import signal
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it later, inside, would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def spawning() -> Iterator[None]:
    """Worker processes started inside get our environment and do not import the caller's main script.

    Units are functions of installed modules, so workers need no ``__main__``; importing it would run a script
    that lacks ``if __name__ == "__main__"`` again in every worker, or import Prefect there.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    environment = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)
    main.__spec__ = None
    main.__file__ = None
    try:
        yield
    finally:
        main.__spec__, main.__file__ = spec, file
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
