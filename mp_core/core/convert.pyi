from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.core.names import FloatName, OtherName, StoredName

FORMATS: dict[str, int]

def install(
    dtypes: dict[str, np.dtype[Any]],
    long_way: Callable[[Any, Any, np.ndarray[Any, Any] | None, bool], np.ndarray[Any, Any]],
) -> None: ...
def cast(
    x: ArrayLike,
    dtype: FloatName | OtherName | StoredName | DTypeLike,
    *,
    out: np.ndarray[Any, Any] | None = None,
    saturate: bool = False,
) -> np.ndarray[Any, Any]: ...
def convert(
    src: np.ndarray[Any, Any], dst: np.ndarray[Any, Any], src_format: int, dst_format: int, saturate: bool
) -> None: ...
