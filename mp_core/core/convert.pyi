from typing import Any

import numpy as np

def convert(
    src: np.ndarray[Any, Any], dst: np.ndarray[Any, Any], src_format: int, dst_format: int, saturate: bool
) -> None: ...
