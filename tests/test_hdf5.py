"""HDF5 files, written for h5py and read by both; damaged files raise an error, whatever the damage."""

import contextlib
import io
import struct
import tracemalloc

import numpy as np
import pytest

from mp_core.files import hdf5

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


def test_what_is_not_read_is_said():
    with pytest.raises(ValueError, match=r"chunked.*, which Keras does not write: convert the file with h5py"):
        hdf5.read(_by_h5py(TREE, compression="gzip"))
    file = io.BytesIO()
    with h5py.File(file, "w", libver="latest") as root:
        root["x"] = np.ones(3)
    with pytest.raises(ValueError, match="superblock"):
        hdf5.read(file.getvalue())


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="received complex64"):
        hdf5.chunks({"x": np.ones(2, np.complex64)})


def _shared_arrays():
    """Return a file of 500 arrays of 1 MB at one address: 500 MB of 2."""
    content = bytearray(
        _bytes({"x": {f"{i:03}": np.ones(1, np.float32) for i in range(500)}, "y": np.ones(1 << 18, "f4")})
    )
    (large,) = struct.unpack_from("<Q", content, content.find(struct.pack("<Q", 1 << 20)) - 8)
    for space in _places(content, struct.pack("<BBB5xQ", 1, 1, 0, 1)):
        struct.pack_into("<Q", content, space + 8, 1 << 18)
    for layout in _places(content, b"\3\1"):
        if content[layout + 10 : layout + 18] == struct.pack("<Q", 4):
            struct.pack_into("<QQ", content, layout + 2, large, 1 << 20)
    return content


def _two_arrays():
    """Return a file of two arrays that overlap, of fewer bytes than the file."""
    content = bytearray(_bytes({"x": np.arange(50.0), "y": np.arange(50.0), "z": np.zeros(99)}))
    first, second, _ = _places(content, b"\3\1")
    content[second + 2 : second + 10] = struct.pack("<Q", struct.unpack_from("<Q", content, first + 2)[0] + 80)
    return content


def _names():
    """Return a file of 500 names, each of which is the rest of one text of 1 MB: 500 MB of 1."""
    content = bytearray(_bytes({f"{i:03}": np.ones(1, np.int8) for i in range(500)}))
    struct.pack_into("<QQQ", content, content.find(b"HEAP") + 8, (1 << 20) + 1, 1, len(content))
    table = content.find(b"SNOD") + 8
    for place in range(500):
        struct.pack_into("<Q", content, table + 40 * place, place)
    return content + b"a" * (1 << 20) + b"\0"


def _places(content, part):
    at = content.find(part)
    while at >= 0:
        yield at
        at = content.find(part, at + 1)


SHARED = [
    (_shared_arrays, "its parts have more bytes than the file"),
    (_two_arrays, "two of its parts overlap at byte"),
    (_names, "the names in the heap at byte .* overlap"),
]


@pytest.mark.parametrize(("make", "message"), SHARED, ids=[row[0].__name__ for row in SHARED])
def test_parts_that_overlap_are_refused_before_they_take_memory(make, message):
    content = bytes(make())
    tracemalloc.start()
    with pytest.raises(ValueError, match=message):
        hdf5.read(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(content) + (1 << 22)


@pytest.mark.parametrize("length", [0, 8, 50, 95, 96, 200, 1000, 5000])
def test_a_truncated_file_is_an_error(length):
    with pytest.raises(ValueError, match=r"not an HDF5 file|truncated"):
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
