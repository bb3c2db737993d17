from typing import Any

import numpy as np

CODES: dict[str, tuple[int, int]]

class Exported:
    def __init__(self, array: np.ndarray[Any, Any]) -> None: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
