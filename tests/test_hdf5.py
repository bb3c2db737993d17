"""HDF5 files, written for h5py and read beside it; damaged ones raise, whatever the damage."""

import contextlib
import io

import numpy as np
import pytest

from mp_core.utilities import hdf5

h5py = pytest.importorskip("h5py")
rng = np.random.default_rng(0)
TREE = {
    "layers": {f"dense_{i}": {"vars": {"0": rng.standard_normal((3, 4)).astype(np.float32)}} for i in range(70)},
    "optimizer": {"vars": {str(i): np.asarray(i, np.int32) for i in range(11)}},
    "empty": {},
    "types": {
        "float64": rng.standard_normal((2, 3)), "float16": rng.standard_normal(7).astype(np.float16),
        "uint8": np.arange(3, dtype=np.uint8), "int64": np.arange(-3, 3), "nothing": np.zeros((0, 3), np.float32),
    },
}  # fmt: skip


def _bytes(tree):
    return b"".join(bytes(part) if isinstance(part, bytes) else part.tobytes() for part in hdf5.chunks(tree))


def _check(got, want):
    assert set(got) == set(want)
    for name, part in want.items():
        if isinstance(part, dict):
            _check(got[name], part)
        else:
            array = np.asarray(got[name])
            assert (array.dtype, array.shape) == (part.dtype, part.shape)
            np.testing.assert_array_equal(array, part)


def _by_h5py(tree, **options):
    file = io.BytesIO()

    def put(group, tree):
        for name, part in tree.items():
            if isinstance(part, dict):
                put(group.create_group(name), part)
            else:
                group.create_dataset(name, data=part, **(options if part.ndim and part.size else {}))

    with h5py.File(file, "w") as root:
        put(root, tree)
        root["layers"].attrs["name"] = "a name" * 1000  # which takes a second block of a header
    return file.getvalue()


def test_h5py_reads_what_is_written():
    with h5py.File(io.BytesIO(_bytes(TREE)), "r") as root:
        _check(root, TREE)


def test_what_is_written_is_read_again():
    _check(hdf5.read(_bytes(TREE)), TREE)


def test_what_h5py_writes_is_read():
    _check(hdf5.read(_by_h5py(TREE)), TREE)


def test_what_only_a_library_reads_is_said():
    with pytest.raises(hdf5.Unsupported, match="chunks"):
        hdf5.read(_by_h5py(TREE, compression="gzip"))
    file = io.BytesIO()
    with h5py.File(file, "w", libver="latest") as root:
        root["x"] = np.ones(3)
    with pytest.raises(hdf5.Unsupported, match="superblock"):
        hdf5.read(file.getvalue())


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="received complex64"):
        hdf5.chunks({"x": np.ones(2, np.complex64)})


@pytest.mark.parametrize("length", [0, 8, 50, 95, 96, 200, 1000, 5000])
def test_a_truncated_file_is_an_error(length):
    with pytest.raises(ValueError, match=r"no HDF5 file|truncated"):
        hdf5.read(_bytes(TREE)[:length])


def test_flipped_bytes_give_an_error_or_other_numbers_but_no_crash():
    small = {"layers": {"dense": {"vars": {"0": np.ones((2, 3), np.float32), "1": np.arange(3)}}}}
    content = bytearray(_bytes(small))
    for place in range(len(content)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(content)
            damaged[place] ^= flip
            with contextlib.suppress(ValueError):
                hdf5.read(damaged)
