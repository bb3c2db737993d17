from typing import Any

import numpy as np

FLOATS: dict[str, int]
CASTS: dict[str, int]
PANELS: dict[str, int]
RESULTS: dict[str, int]
NARROW: tuple[str, ...]
FOURS: tuple[str, ...]
PANEL_DTYPES: dict[str, np.dtype[Any]]
RESULT_DTYPES: frozenset[np.dtype[Any]]
PRODUCTS: dict[tuple[str, str], str]
