from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.core.names import FloatName, OtherName, StoredName

def cast(
    x: ArrayLike,
    dtype: FloatName | OtherName | StoredName | DTypeLike,
    *,
    out: np.ndarray[Any, Any] | None = None,
    saturate: bool = False,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | np.ndarray[Any, Any] | None = None,
    draw: int | None = None,
) -> np.ndarray[Any, Any]: ...
