"""Iterables that do not yield what their owner expects: for every function that takes texts."""

from collections import UserDict

import numpy as np


class Table:
    """A table as pandas has it: it yields the names of its columns, and becomes an array of its cells."""

    columns = ("title", "text")
    ndim = 2

    def __iter__(self):
        return iter(self.columns)

    def __array__(self, dtype=None, copy=None):
        return np.array([["a", "b"], ["c", "d"]], dtype)


class Frame:
    """A table as polars and pyarrow have it: it yields its columns."""

    columns = (("a", "b"), ("c", "d"))

    def __iter__(self):
        return iter(self.columns)


class Exchanged:
    """A table that tells others of itself by the interchange protocol only."""

    def __iter__(self):
        return iter(["title", "text"])

    def __dataframe__(self, **_):
        raise AssertionError


NO_TEXTS = {
    "table": (Table(), "Table, a table, which yields its columns"),
    "frame": (Frame(), "Frame, a table, which yields its columns"),
    "exchanged": (Exchanged(), "Exchanged, a table, which yields its columns"),
    "set": ({"a", "b"}, "set, which has no order"),
    "frozenset": (frozenset("ab"), "frozenset, which has no order"),
    "keys": ({"a": 1}.keys(), "dict_keys, which has no order"),
    "items": ({"a": "b"}.items(), "dict_items, which has no order"),
    "bytes": (b"ab", "bytes, which is to be decoded"),
    "bytearray": (bytearray(b"ab"), "bytearray, which is to be decoded"),
    "memory": (memoryview(b"ab"), "memoryview, which is to be decoded"),
    "scalar": (np.array("a"), "ndarray, an array without axes"),
    "number": (3, "int"),
    "nothing": (None, "NoneType"),
}
"""Name -> what is no texts, and how the error calls it."""

MAPPINGS = {"dict": {"a": "b", "c": "d"}, "other mapping": UserDict(title="a", text="b"), "empty dict": {}}
