"""Fingerprints change when inputs change; versions and commits are found without importing anything."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import zarr

from headrace.storage.errors import SourceError
from headrace.storage.provenance import collect, commit, fingerprint, peak_memory, versions


@pytest.fixture(params=["file", "store"])
def source(request, tmp_path):
    if request.param == "file":
        path = tmp_path / "a.nc"
        path.write_bytes(np.random.default_rng(0).bytes(300_000))
        return path
    zarr.create_array(tmp_path / "a.zarr", data=np.arange(100), chunks=(10,))
    return tmp_path / "a.zarr"


def part(source):
    return source if source.is_file() else source / "c" / "3"


def edit(path, at):
    """Change one byte, and put size and times back."""
    state, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("hash_content", [False, True])
def test_the_same_source_has_the_same_fingerprint(source, hash_content):
    assert fingerprint(source, hash_content) == fingerprint(source, hash_content)


def test_a_later_time_or_another_size_is_seen(source):
    before = fingerprint(source)
    os.utime(part(source), ns=(1, 1))
    later = fingerprint(source)
    with part(source).open("ab") as handle:
        handle.write(b"x")
    os.utime(part(source), ns=(1, 1))
    assert len({before, later, fingerprint(source)}) == 3


def test_content_is_seen_when_asked_for(source):
    before = fingerprint(source, hash_content=True)
    edit(part(source), len(part(source).read_bytes()) // 2)
    assert fingerprint(source, hash_content=True) != before


def test_content_does_not_depend_on_times_or_place(source, tmp_path):
    copy = tmp_path / "b" / "other name"
    copy.parent.mkdir()
    (shutil.copy if source.is_file() else shutil.copytree)(source, copy)
    os.utime(part(copy), ns=(1, 1))
    assert fingerprint(copy, hash_content=True) == fingerprint(source, hash_content=True)


def test_two_files_of_one_size_and_time_differ(tmp_path):
    for name, content in (("a", b"x" * 1000), ("b", b"y" * 1000)):
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, ns=(1, 1))
    assert fingerprint(tmp_path / "a") != fingerprint(tmp_path / "b")


def test_edited_metadata_of_a_store_are_always_seen(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=np.arange(100), attributes={"units": "m"})
    before = fingerprint(tmp_path / "a.zarr")
    edit(tmp_path / "a.zarr" / "zarr.json", (tmp_path / "a.zarr" / "zarr.json").read_bytes().index(b'"m"') + 1)
    assert fingerprint(tmp_path / "a.zarr") != before


def test_new_chunks_are_seen_and_temporary_files_are_not(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=np.arange(100))
    before = fingerprint(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / ".0a.tmp").touch()
    assert fingerprint(tmp_path / "a.zarr") == before
    (tmp_path / "a.zarr" / "c" / "7").touch()
    assert fingerprint(tmp_path / "a.zarr") != before


def test_a_missing_source_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"no input at .*none; expected"):
        fingerprint(tmp_path / "none")


def test_versions_are_those_installed():
    found = versions()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["zarr"] == version("zarr")


def test_the_commit_is_that_of_this_checkout():
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    assert commit()["commit"] == (done.stdout.strip() or None)


def test_provenance_imports_nothing_heavy():
    code = "import sys; from headrace.storage.provenance import collect; collect(); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"xarray", "zarr", "dask", "h5py", "prefect", "matplotlib"} & set(done.stdout.split())


def test_memory_is_counted_in_bytes():
    block = np.ones(30_000_000, "u1")
    assert peak_memory() > block.nbytes
    assert set(collect()) == {"versions", "git", "host", "machine"}
