from typing import Any

SETTINGS: dict[str, Any]

def product_plan(m: int, k: int, n: int, dtype: str, **settings: Any) -> dict[str, Any]: ...
