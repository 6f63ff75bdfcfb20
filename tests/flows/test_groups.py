"""Units seen in groups: the engine's thread never waits for units that the caller may not submit yet."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import pytest

from headrace.flows._base import inline
from headrace.flows._groups import Group
from headrace.storage.errors import UnitError

SECONDS = 20


class Flaky:
    """A function that fails the first time, for a reason that may pass."""

    def __init__(self) -> None:
        self.calls = 0
        self.__name__ = "flaky"

    def __call__(self) -> str:
        self.calls += 1
        if self.calls == 1:
            raise OSError(5, "I/O error")
        return "second try"


@pytest.fixture
def thread() -> Iterator[Callable[[Group], Future[None]]]:
    """Run a group's work in a thread, as an engine does: once more while units are held back."""
    with ThreadPoolExecutor(4) as pool:

        def engine(group: Group) -> None:
            try:
                group.work()
            except OSError:
                group.work()

        yield lambda group: pool.submit(engine, group)


def double(x: int) -> int:
    return 2 * x


def add(group: Group, number: int, fn: Callable[..., Any], *args: Any) -> Any:
    unit = group.add(number, fn, args)
    assert unit is not None
    return unit


def test_a_full_group_takes_no_more_and_ends(thread: Callable[[Group], Future[None]]) -> None:
    group = Group(inline, 3)
    ended = thread(group)
    units = [add(group, number, double, number) for number in range(3)]
    assert group.add(3, double, (3,)) is None
    assert [unit.result(SECONDS) for unit in units] == [0, 2, 4]
    ended.result(SECONDS)


def test_results_come_before_the_group_is_full(thread: Callable[[Group], Future[None]]) -> None:
    group = Group(inline, 100)
    ended = thread(group)
    assert add(group, 0, double, 21).result(SECONDS) == 42
    assert not ended.done()
    group.close()
    ended.result(SECONDS)


def test_a_failed_unit_is_started_again_at_once_when_its_caller_waits(thread: Callable[[Group], Future[None]]) -> None:
    group = Group(inline, 100)
    ended = thread(group)
    flaky = Flaky()
    unit = add(group, 0, flaky)
    assert unit.result(SECONDS) == "second try"  # without the rest of the group, which waits for this result
    assert flaky.calls == 2
    ended.result(SECONDS)
    assert group.add(1, double, (1,)) is None


def test_asking_whether_a_unit_is_done_counts_as_waiting(thread: Callable[[Group], Future[None]]) -> None:
    group = Group(inline, 100)
    unit = add(group, 0, Flaky())
    ended = thread(group)
    done = threading.Event()
    for _ in range(SECONDS * 100):
        if unit.done():
            done.set()
            break
        done.wait(0.01)
    assert unit.result(SECONDS) == "second try"
    ended.result(SECONDS)


def test_others_of_the_group_are_not_started_again(thread: Callable[[Group], Future[None]]) -> None:
    calls: list[int] = []
    group, flaky = Group(inline, 3), Flaky()
    units = [add(group, 0, calls.append, 0), add(group, 1, flaky), add(group, 2, calls.append, 2)]
    thread(group).result(SECONDS)
    assert calls == [0, 2]
    assert units[1].result(SECONDS) == "second try"


def test_lasting_failures_are_named_and_reach_the_caller(thread: Callable[[Group], Future[None]]) -> None:
    def broken() -> None:
        raise OSError(5, "I/O error")

    group = Group(inline, 2)
    units = [add(group, 7, double, 1), add(group, 8, broken)]
    with pytest.raises(UnitError, match=r"1 of 2 units .*unit 8.*I/O error"):
        thread(group).result(SECONDS)
    assert units[0].result(SECONDS) == 2
    with pytest.raises(OSError, match="I/O error"):
        units[1].result(SECONDS)


def test_wrong_values_are_not_tried_again(thread: Callable[[Group], Future[None]]) -> None:
    calls: list[int] = []

    def wrong() -> None:
        calls.append(1)
        raise ValueError("bad value")

    group = Group(inline, 1)
    unit = add(group, 0, wrong)
    with pytest.raises(UnitError, match="bad value"):
        thread(group).result(SECONDS)
    with pytest.raises(ValueError, match="bad value"):
        unit.result(SECONDS)
    assert calls == [1]


def test_callers_get_results_although_the_engine_gave_up() -> None:
    group = Group(inline, 100)
    unit = add(group, 0, double, 4)
    group.abandoned()  # no thread ever called work()
    assert unit.result(SECONDS) == 8


def test_a_submission_that_fails_does_not_hang_the_engine(thread: Callable[[Group], Future[None]]) -> None:
    def refuse(fn: Callable[..., Any], /, *args: Any) -> Any:
        raise ConnectionError("no scheduler")

    group = Group(refuse, 5)
    ended = thread(group)
    with pytest.raises(ConnectionError, match="no scheduler"):
        group.add(0, double, (1,))
    ended.result(SECONDS)


def test_cancelled_units_end_the_group(thread: Callable[[Group], Future[None]]) -> None:
    with ThreadPoolExecutor(1) as pool:
        begun, go = threading.Event(), threading.Event()

        def block() -> None:
            begun.set()
            go.wait(SECONDS)

        group = Group(pool.submit, 100)
        ended = thread(group)
        units = [add(group, number, block) for number in range(3)]
        assert begun.wait(SECONDS)
        group.cancel()
        go.set()
        with pytest.raises(UnitError, match="CancelledError"):
            ended.result(SECONDS)
        assert units[0].result(SECONDS) is None
        with pytest.raises(CancelledError):
            units[2].result(SECONDS)
