from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.core.names import FloatName, OtherName, StoredName

def cast(
    x: ArrayLike,
    dtype: FloatName | OtherName | StoredName | DTypeLike,
    *,
    out: np.ndarray[Any, Any] | None = None,
    saturate: bool = False,
) -> np.ndarray[Any, Any]: ...
