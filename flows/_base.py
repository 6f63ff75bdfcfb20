"""What every flow module shares: parameters, plan, report, and the one seam between logic and engine.

A flow module has four names: ``Params`` (a ``FlowParams``), ``plan(params)``, ``run(params, submit, notify)`` and the
Prefect flow named like the module. ``submit(fn, *args)`` returns something with ``.result()`` and ``.done()``: run in
place, a thread or process pool, a Dask client and the Prefect adapter all satisfy it.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from headrace.flows._catalog import FLOWS
from headrace.storage.errors import HeadraceError, UnitError

__all__ = [
    "COMMAND",
    "FLOWS",
    "Done",
    "Figure",
    "FlowParams",
    "Notify",
    "Pending",
    "Plan",
    "Progress",
    "Report",
    "Submit",
    "Table",
    "UnitResults",
    "ignore",
    "inline",
    "lazy_flow",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

EXECUTOR_PATTERN = (
    r"^(auto|inline|threads(:[1-9]\d*)?|processes(:[1-9]\d*)?|dask(:[1-9]\d*)?|dask:[a-z]+://\S+|slurm:[\w./-]+)$"
)

COMMAND: ContextVar[tuple[str, ...]] = ContextVar("headrace_command", default=())
"""Command line of the current run, for its provenance; empty when called from Python."""


class FlowParams(BaseModel):
    """Parameters all flows have. A subclass adds its own; every field has a default and a description."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    VOLATILE: ClassVar[frozenset[str]] = frozenset({"out", "executor", "device", "fresh"})
    """Fields that do not change the result and so are no part of the run's key."""

    out: Path = Field(default=Path("runs"), description="folder that holds the run folders")
    executor: str = Field(
        default="auto",
        pattern=EXECUTOR_PATTERN,
        description=(
            "executor of units of work: auto (in place for one unit, local Dask for more), inline, threads:N, "
            "processes:N, dask:N, dask:tcp://HOST:PORT or slurm:PRESET"
        ),
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="device of array kernels: auto, cpu or cuda[:n]; auto takes a GPU where there is one",
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="seed of all random numbers")
    fresh: bool = Field(default=False, description="start over: delete what an earlier run with these parameters left")

    @classmethod
    def smoke(cls) -> Self:
        """Parameters of a run of seconds that still touches every step."""
        return cls()


@dataclass(frozen=True)
class Plan:
    """What a run would do, from metadata only: nothing is written and no array data is read."""

    flow: str
    units: int
    bytes_in: int
    bytes_out: int | None
    """Estimate; None when it depends on the data."""
    peak_memory: int
    """Bytes of host memory, estimate over all processes."""
    device: str
    details: dict[str, str] = field(default_factory=dict)
    template: str = ""
    """Text of the empty output: dimensions, data types, chunks, attributes."""
    key: str = ""
    """Name of the run folder, so that a flow run elsewhere carries it too; empty when only the run knows."""


@dataclass(frozen=True)
class Table:
    """A table of a report; ``rows`` hold strings and numbers in the order of ``columns``."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture of a report, as the bytes of a PNG file."""

    title: str
    png: bytes
    caption: str = ""


@dataclass
class Report:
    """What a run found. ``metrics`` are finite numbers with documented names; ``path`` is the run folder."""

    title: str
    metrics: dict[str, float]
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    path: Path = Path()


@dataclass(frozen=True)
class Progress:
    """How far a run is: ``done`` of ``total`` things called ``unit`` (None: not known), and a short note."""

    done: int
    total: int | None
    unit: str
    note: str = ""


def lazy_flow(module: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a flow module, which builds its Prefect flow when someone asks for it.

    Written once in every flow module, ``__getattr__ = lazy_flow(__name__)``, it gives Prefect an entrypoint such as
    ``headrace.flows.compress.compress``, while a run without Prefect never imports it.
    """
    own = module.rpartition(".")[2]

    def attribute(name: str) -> Any:
        if name != own:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        from headrace.flows._prefect import flow_attribute

        return flow_attribute(module, name)

    return attribute


Notify = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Take no notice of progress."""


class Pending(Protocol[T_co]):
    """A unit of work under way. ``concurrent.futures`` and Dask futures are such."""

    def result(self) -> T_co:
        """Wait, then return the unit's result or raise its error."""
        ...

    def done(self) -> bool:
        """Whether ``result`` would return at once."""
        ...


class Submit(Protocol):
    """Start one unit of work: a module-level function and arguments that pickle."""

    def __call__(self, fn: Callable[..., T], /, *args: Any) -> Pending[T]:
        """Start ``fn(*args)``."""
        ...


@dataclass(frozen=True)
class Done(Generic[T]):
    """A unit that has run: it returned ``value``, or raised ``error``."""

    value: T | None = None
    error: Exception | None = None

    def result(self) -> T:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    def done(self) -> bool:
        """Return True."""
        return True


def inline(fn: Callable[..., T], /, *args: Any) -> Done[T]:
    """Run a unit in place; its error is raised by ``result``, as from any other executor."""
    try:
        return Done(fn(*args))
    except Exception as error:  # noqa: BLE001 - every error belongs to whoever asks for the result
        return Done(error=error)


class UnitResults:
    """Take results of units, note which failed, and let the others finish.

    An error that says the input is wrong (``exit_status`` 2) is raised at once, and so is a failure beyond
    ``limit`` failed units: a long run on a full disk must not go on computing what it cannot keep.
    """

    def __init__(self, limit: int = 8) -> None:
        self.limit = limit
        self.taken = 0
        self.failed: dict[str, Exception] = {}

    def take(self, unit: str, job: Pending[T]) -> T | None:
        """Wait for a unit; its result, or None when it failed.

        Raises
        ------
        HeadraceError
            The unit found its input wrong, or too many units have failed.
        """
        self.taken += 1
        try:
            return job.result()
        except Exception as error:
            if isinstance(error, HeadraceError) and error.exit_status == HeadraceError.exit_status:
                raise
            self.failed[unit] = error
            if len(self.failed) >= self.limit:
                self.check()
            return None

    def check(self) -> None:
        """Raise what failed, if anything did.

        Raises
        ------
        UnitError
            Names the failed units and the first reason.
        """
        if not self.failed:
            return
        names = list(self.failed)
        first = self.failed[names[0]]
        reason = str(first) or type(first).__name__
        if not isinstance(first, HeadraceError):
            reason = f"{type(first).__name__}: {reason}"
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        reason = reason.splitlines()[0].rstrip(".")
        raise UnitError(
            f"{len(names)} of {self.taken} units of work failed ({shown}); {names[0]}: {reason}. "
            "What finished is kept: remove the cause and run the same command again to resume."
        ) from first
