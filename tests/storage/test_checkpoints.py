"""Checkpoints come back bit for bit, or are known to be damaged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.storage.checkpoints import is_whole, read_checkpoint, write_checkpoint
from headrace.storage.errors import ParameterError, StoreError

dtypes = st.sampled_from(["f4", ">f8", "c16", "i8", "u1", "?", "f2", "M8[ns]", "U3", "S2"])
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
names = st.text(st.characters(categories=["L", "N"], include_characters="._/ -"), min_size=1, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**130), 2**130) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(names, arrays, max_size=4), st.dictionaries(st.text(max_size=5), values, max_size=4))
def test_any_state_comes_back_bit_for_bit(tmp_path_factory, state, meta):
    path = tmp_path_factory.mktemp("state") / "1.npz"
    write_checkpoint(path, state, meta)
    found, found_meta = read_checkpoint(path)
    assert found_meta == meta
    assert list(found) == list(state)
    for name, array in state.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == np.ascontiguousarray(array).tobytes()


def test_the_state_of_a_generator_comes_back(tmp_path):
    generator = np.random.default_rng(7)
    generator.random(5)
    write_checkpoint(tmp_path / "1.npz", {}, {"generator": generator.bit_generator.state, "nothing": float("nan")})
    other = np.random.default_rng(0)
    other.bit_generator.state = read_checkpoint(tmp_path / "1.npz")[1]["generator"]
    assert other.random() == generator.random()


def test_equal_states_have_equal_bytes(tmp_path):
    for name in ("a", "b"):
        write_checkpoint(tmp_path / name, {"x": np.arange(9.0)}, {"k": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_every_flipped_byte_of_the_arrays_is_noticed(tmp_path):
    path = tmp_path / "1.npz"
    write_checkpoint(path, {"x": np.arange(64.0)}, {"k": 1})
    whole = path.read_bytes()
    start = whole.index(np.arange(64.0).tobytes())
    for at in range(start, start + 512, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert not is_whole(path)


@pytest.mark.parametrize("length", [0, 1, 10, 100, -1])
def test_a_truncated_file_is_noticed_and_named(tmp_path, length):
    path = tmp_path / "1.npz"
    write_checkpoint(path, {"x": np.arange(64.0)}, {"k": 1})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(StoreError, match=r"1\.npz is damaged"):
        read_checkpoint(path)


def test_objects_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ParameterError, match="'x' holds Python objects"):
        write_checkpoint(tmp_path / "1.npz", {"x": np.array([{}])}, {})
    with pytest.raises(ParameterError, match="of type set"):
        write_checkpoint(tmp_path / "1.npz", {}, {"s": {1}})
    assert not list(tmp_path.iterdir())
