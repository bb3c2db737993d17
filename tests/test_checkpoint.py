"""Reading safetensors files."""

import os

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tensors import safetensors

from mp_core.checkpoint import open_tensors

TENSORS = {
    "float64": np.linspace(-1, 1, 6).reshape(2, 3),
    "float32": np.linspace(-1, 1, 4, dtype=np.float32),
    "float16": np.array([1.5, -0.0], np.float16),
    "bfloat16": np.array([[1.5], [-2.0], [np.inf]], ml_dtypes.bfloat16),
    "float8_e4m3fn": np.array([448, -1], ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.array([57344, -1, 0], ml_dtypes.float8_e5m2),
    "int64": np.array([2**40]),
    "int32": np.array([[1, 2]], np.int32),
    "int16": np.array([-300], np.int16),
    "int8": np.array([-128, 127, 3], np.int8),
    "uint64": np.array([2**63], np.uint64),
    "uint32": np.array([2**31], np.uint32),
    "uint16": np.array([2**15], np.uint16),
    "uint8": np.array([255], np.uint8),
    "bool": np.array([True, False, True]),
    "scalar": np.array(3.0),
    "empty": np.zeros((0, 4), np.float32),
}


@pytest.fixture
def path(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_every_dtype_and_shape_comes_back_bit_for_bit(path):
    opened = open_tensors(path)
    assert opened.keys() == TENSORS.keys()
    for name, expected in TENSORS.items():
        assert opened[name].dtype == expected.dtype, name
        assert opened[name].shape == expected.shape, name
        assert opened[name].tobytes() == expected.tobytes(), name


def test_arrays_are_read_only_views_of_one_map(path):
    opened = open_tensors(path)
    for name, array in opened.items():
        assert type(array) is np.ndarray, name
        assert not array.flags.writeable, name
        assert not array.flags.owndata, name


def test_a_file_without_tensors_is_an_empty_dict(tmp_path):
    save_file({}, tmp_path / "none.safetensors")
    assert open_tensors(tmp_path / "none.safetensors") == {}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
def test_the_file_is_open_once_and_only_while_an_array_lives(path):
    before = len(os.listdir("/proc/self/fd"))
    opened = open_tensors(path)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    last = opened.pop("int8")
    del opened
    assert last.tolist() == [-128, 127, 3]
    del last
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_truncated_file_is_named(path, kept):
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model\.safetensors is (not a valid safetensors file|truncated)"):
        open_tensors(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.safetensors"):
        open_tensors(tmp_path / "absent.safetensors")


def test_a_folder_without_tensors_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} has no safetensors file"):
        open_tensors(tmp_path)


def test_an_unsupported_dtype_names_file_tensor_and_choices(tmp_path):
    header = {"z": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}
    (tmp_path / "four.safetensors").write_bytes(safetensors(header, b"1"))
    with pytest.raises(ValueError, match=r"four\.safetensors: tensor 'z' has dtype F4; mp_core reads F64, F32"):
        open_tensors(tmp_path / "four.safetensors")
