"""One live writer at a time: who is alive, who is not, and who cannot be judged."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from headrace.storage.errors import RunLockedError, StoreError
from headrace.storage.locks import Lock, identity, is_dead, start_time


@pytest.fixture
def ended():
    """Identity of a process of this machine that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    who = {**identity(), "pid": child.pid, "started": start_time(child.pid)}
    assert not is_dead(who)
    child.communicate(b"\n")
    return who


def test_an_ended_process_is_dead(ended):
    assert is_dead(ended)


def test_this_process_is_alive():
    assert not is_dead(identity())


def test_a_zombie_is_dead():
    child = subprocess.Popen([sys.executable, "-c", ""])
    who = {**identity(), "pid": child.pid, "started": start_time(child.pid)}
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # wait, and leave it a zombie
    assert is_dead(who)
    child.wait()


def test_a_process_id_given_to_another_process_is_not_mistaken():
    assert is_dead({**identity(), "started": "1"})


def test_a_machine_started_anew_has_no_old_processes():
    assert is_dead({**identity(), "boot": "an earlier one"})


@pytest.mark.parametrize("other", [{"host": "elsewhere"}, {"namespace": "pid:[1]"}])
def test_another_host_or_container_cannot_be_judged(other):
    assert not is_dead({**identity(), "pid": 2**22 + 1, "started": "0", **other})


def test_a_lock_excludes_and_says_who_holds_it(tmp_path):
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    first.acquire()
    with pytest.raises(RunLockedError) as caught:
        second.acquire()
    for part in (f"process {os.getpid()} on host {socket.gethostname()}", "expected", f"delete {tmp_path / 'lock'}"):
        assert part in str(caught.value)
    second.release()
    assert (tmp_path / "lock").exists()
    first.release()
    assert not list(tmp_path.iterdir())
    second.acquire()


def test_a_lock_of_an_ended_process_is_broken(tmp_path, ended):
    (tmp_path / "lock").write_text(json.dumps(ended))
    Lock(tmp_path / "lock").acquire()
    assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_a_lock_of_another_host_is_left_alone(tmp_path):
    (tmp_path / "lock").write_text(json.dumps({**identity(), "host": "elsewhere"}))
    with pytest.raises(RunLockedError, match="on host elsewhere"):
        Lock(tmp_path / "lock").acquire()


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_damaged_lock_is_broken_once_it_is_old(tmp_path, content):
    path = tmp_path / "lock"
    path.write_text(content)
    with pytest.raises(RunLockedError, match="process"):
        Lock(path).acquire()
    os.utime(path, (time.time() - 60, time.time() - 60))
    Lock(path).acquire()


def test_of_many_who_break_a_stale_lock_one_gets_it(tmp_path, ended):
    for _ in range(20):
        (tmp_path / "lock").write_text(json.dumps(ended))
        barrier, won, lost = threading.Barrier(8), [], []

        def race(barrier=barrier, won=won, lost=lost):
            lock = Lock(tmp_path / "lock")
            barrier.wait()
            try:
                lock.acquire()
                won.append(lock)
            except RunLockedError:
                lost.append(lock)

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 7)
        won[0].release()


def test_a_lock_that_replaced_ours_is_not_released(tmp_path):
    lock = Lock(tmp_path / "lock")
    lock.acquire()
    (tmp_path / "lock").write_text(json.dumps({**identity(), "pid": 1}))
    lock.release()
    assert (tmp_path / "lock").exists()


def test_a_place_that_cannot_be_locked_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"cannot lock .*No such file"):
        Lock(tmp_path / "missing" / "lock").acquire()
