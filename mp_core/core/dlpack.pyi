from typing import Any

import numpy as np

NAMES: dict[tuple[int, int], str]

def from_dlpack(x: Any, dtypes: dict[str, np.dtype[Any]]) -> np.ndarray[Any, Any]: ...
def from_capsule(capsule: Any, dtypes: dict[str, np.dtype[Any]]) -> np.ndarray[Any, Any]: ...
