from typing import Any

import numpy as np

FORMATS: dict[str, int]

def convert_small(
    x: Any, dtype: Any, out: Any, saturate: bool, formats: dict[Any, Any]
) -> np.ndarray[Any, Any] | None: ...
def convert(
    src: np.ndarray[Any, Any], dst: np.ndarray[Any, Any], src_format: int, dst_format: int, saturate: bool
) -> None: ...
