"""Atomic files and strict JSON: what is on the disk is the old or the new, never a part."""

import errno
import json
import math
import resource
from contextlib import contextmanager
from datetime import date
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.errors import ParameterError, StoreError
from headrace.storage.files import (
    plain,
    read_json,
    remove_temporaries,
    replacing,
    store_error,
    write_bytes,
    write_json,
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


@contextmanager
def file_size_limit(size):
    """Let writes beyond a file size fail, as they do on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


def same(found, wanted):
    """Equal, when numbers JSON lacks are read back with ``float``."""
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, float) and not math.isfinite(wanted):
        return float(found) == wanted or (math.isnan(wanted) and math.isnan(float(found)))
    return type(found) is type(wanted) and found == wanted


@given(trees)
def test_any_json_value_is_strict_json_and_comes_back(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("json") / "value.json"
    write_json(path, value)
    assert same(json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant), value)
    assert same(read_json(path), value)


def test_values_of_libraries_become_plain():
    class Colour(Enum):
        RED = "red"

    value = {
        1: Path("a/b"),
        "n": np.float32(0.5),
        "v": np.arange(3),
        "s": {"b", "a"},
        "e": Colour.RED,
        "t": (1, date(2000, 1, 2)),
    }
    assert plain(value) == {"1": "a/b", "n": 0.5, "v": [0, 1, 2], "s": ["a", "b"], "e": "red", "t": [1, "2000-01-02"]}
    assert plain(np.array("2000-01-01", "M8[D]")) == "2000-01-01"
    assert plain(np.array([np.nan, np.inf, -np.inf])) == ["NaN", "Infinity", "-Infinity"]


def test_a_value_without_json_form_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ParameterError, match="bytes has no JSON form"):
        write_json(tmp_path / "x.json", {"a": b"raw"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b'{"a": 1} tail'])
def test_damaged_json_is_named(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"run\.json is damaged.*expected.*remove"):
        read_json(tmp_path / "run.json")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"cannot read .*none\.json: No such file"):
        read_json(tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "chunk"
    write_bytes(path, b"old")
    with file_size_limit(1000), pytest.raises(StoreError, match=r"cannot write .*chunk: File too large.*repeat"):
        write_bytes(path, bytes(5000))
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["chunk"]


def test_an_interrupt_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "chunk"
    write_bytes(path, b"old")

    def interrupted():
        with replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["chunk"]


def test_a_full_disk_is_told_with_its_free_space_and_a_way_out(tmp_path):
    error = store_error("write", tmp_path / "a", OSError(errno.ENOSPC, "No space left on device"))
    assert error.errno == errno.ENOSPC
    assert "No space left on device (" in str(error)
    assert "MB free" in str(error)
    assert "free some space" in str(error)


def test_only_leavings_of_killed_writers_are_removed(tmp_path):
    keep = ["run.json", "a/c/0", "tmp", "x.tmp.json", "a.partial.d/f"]
    drop = [".0f.tmp", "a/.1e.tmp", "a/c/0.00ff.partial", ".st.zarr.2d.tmp/v/zarr.json"]
    for name in keep + drop:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    removed = remove_temporaries(tmp_path)
    assert len(removed) == 4
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()) == sorted(keep)


def test_a_link_is_removed_and_not_followed(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "f").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link.tmp").symlink_to(tmp_path / "precious")
    remove_temporaries(tmp_path / "run")
    assert not (tmp_path / "run" / "link.tmp").is_symlink()
    assert (tmp_path / "precious" / "f").exists()
