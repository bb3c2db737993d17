from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

def gather(table: _Array, indices: _Array, out: _Array, src_format: int, dst_format: int) -> None: ...
def gather_numbers(
    table: _Array,
    indices: _Array,
    out: _Array,
    dst_format: int,
    kind: tuple[int, bool, bool],
    scale: _Array,
    zero_point: _Array | None,
    group: int,
) -> None: ...
def sum_by_index(fmt: int, x: _Array, indices: _Array, out: _Array) -> None: ...
def count_places(ids: _Array, padding: int, places: _Array) -> None: ...
def at_indices(how: str, fmt: int, array: _Array, other: _Array, indices: _Array, step: int, limit: int) -> None: ...
def find_order(fmt: int, wide: int, x: _Array, out: _Array, descending: bool, extreme: bool) -> None: ...
