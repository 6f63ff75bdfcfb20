"""Consecutive units of work seen as one: what an engine that likes few, long tasks is shown."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from headrace.flows._base import Pending, Submit, UnitResults
from headrace.flows._executors import is_transient

logger = logging.getLogger(__name__)


class Unit(Future[Any]):
    """A unit's result, after the retry of its group if one was needed."""

    def __init__(self, group: "Group", number: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__()
        self.group, self.number, self.fn, self.args = group, number, fn, args
        self.raw: Pending[Any] | None = None

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the unit, then return its result or raise its error."""
        self.group.want(self)
        return super().result(timeout)

    def wait(self) -> Any:
        """Wait for the executor: the result of this try."""
        if self.raw is None:
            raise RuntimeError(f"unit {self.number} is waited for before it is submitted")
        return self.raw.result()

    def done(self) -> bool:
        """Whether ``result`` would return at once."""
        self.group.want(self)
        return super().done()


class Group:
    """Units that are submitted at once and waited for together, in ``work``, by a thread of the engine.

    ``work`` waits for the units as they come, until the group is full or closed. Units that failed for a reason that
    may pass are held back, and started again when the engine calls ``work`` again. A caller that waits for a unit held
    back closes the group: it may not submit the rest before it has that result.
    """

    def __init__(self, submit: Submit, size: int) -> None:
        self.submit, self.size = submit, size
        self.units: list[Unit] = []
        self.held: list[Unit] = []
        self.wanted: set[Unit] = set()
        self.closed = False
        self.changed = threading.Condition()
        self.results = UnitResults(limit=size + 1)

    def add(self, number: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> Unit | None:
        """Start a unit; None when the group is closed."""
        unit = Unit(self, number, fn, args)
        with self.changed:
            if self.closed:
                return None
            self.units.append(unit)
        try:
            unit.raw = self.submit(fn, *args)
        except BaseException:
            self.units.remove(unit)
            self.close()
            raise
        with self.changed:
            self.closed |= len(self.units) >= self.size
            self.changed.notify_all()
        return unit

    def close(self) -> None:
        """Take no further units."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def cancel(self) -> None:
        """Take no further units, and drop those that have not begun where the executor can."""
        self.close()
        for unit in list(self.units):
            cancel = getattr(unit.raw, "cancel", None)
            if cancel is not None:
                cancel()

    def want(self, unit: Unit) -> None:
        """Note that someone waits for a unit."""
        with self.changed:
            self.wanted.add(unit)
            if unit in self.held:
                self.closed = True
                self.changed.notify_all()

    def work(self) -> None:
        """Wait for the units; called again, start those held back once more.

        Raises
        ------
        OSError
            Units are held back: call again.
        UnitError
            Units failed for good.
        """
        if self.held:
            again, self.held = self.held, []
            for unit in again:
                unit.raw = self.submit(unit.fn, *unit.args)
            self._settle(again, last_try=True)
        else:
            self._settle(self._coming(), last_try=False)
        if self.held:
            raise OSError(f"{len(self.held)} of {len(self.units)} units failed for a reason that may pass")
        self.results.taken = len(self.units)
        self.results.check()

    def abandoned(self) -> None:
        """Give waiting callers their results although the engine no longer calls ``work``; harmless otherwise."""
        self.close()
        left = [unit for unit in self.units if not Future.done(unit)]
        if left:
            threading.Thread(target=self._settle, args=(left,), kwargs={"last_try": True}, daemon=True).start()

    def _coming(self) -> Iterator[Unit]:
        """Units in the order of their submission, waiting for more until the group is closed."""
        index = 0

        def ready() -> bool:
            if index < len(self.units):
                return self.units[index].raw is not None
            return self.closed

        while True:
            with self.changed:
                self.changed.wait_for(ready)
                if index >= len(self.units):
                    return
                unit = self.units[index]
            index += 1
            yield unit

    def _settle(self, units: Iterable[Unit], *, last_try: bool) -> None:
        """Hand each unit its result; hold back those worth another try."""
        for unit in units:
            try:
                value = unit.wait()
            except BaseException as error:  # noqa: BLE001 - cancellation included: it belongs to the waiting caller
                if is_transient(error) and not last_try:
                    logger.warning("%s failed (%s); trying once more", unit.fn.__name__, error)
                    self._hold(unit)
                    continue
                failure = error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
                self.results.failed[f"unit {unit.number}"] = failure
                unit.set_exception(error)
            else:
                unit.set_result(value)
            unit.args = ()

    def _hold(self, unit: Unit) -> None:
        with self.changed:
            self.held.append(unit)
            if unit in self.wanted:
                self.closed = True
                self.changed.notify_all()
