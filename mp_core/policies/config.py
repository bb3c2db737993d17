"""Settings of the process (types, default policy, instruction set, order of sums, threads), and a report of them."""

import platform
from typing import TYPE_CHECKING, Any, Literal, overload

import ml_dtypes
import numpy as np

from mp_core.arrays.dtypes import floatx, set_floatx
from mp_core.core.cpu import (
    __commit__,
    __version__,
    available_isas,
    cpu_features,
    get_num_threads,
    is_reproducible,
    isa,
    left_out_isas,
    num_threads,
    order_and_reason,
    reproducible,
    set_isa,
    set_num_threads,
    set_reproducible,
    threads_and_reason,
)
from mp_core.core.instructions import kernel_names, what_is_gained, what_is_lost
from mp_core.policies.dtype_policies import DTypePolicy, dtype_policy, set_dtype_policy
from mp_core.utilities.absent import refusing
from mp_core.utilities.tables import outline

__all__ = [
    "DTypePolicy",
    "available_isas",
    "dtype_policy",
    "epsilon",
    "floatx",
    "get_num_threads",
    "is_reproducible",
    "isa",
    "num_threads",
    "reproducible",
    "set_dtype_policy",
    "set_floatx",
    "set_isa",
    "set_num_threads",
    "set_reproducible",
    "show_config",
]


if not TYPE_CHECKING:  # so that type checkers report unknown names
    __getattr__, __dir__ = refusing("config", __all__)


def epsilon() -> float:
    """Return 1e-7, the small number that Keras' examples add in logarithms and quotients.

    >>> epsilon()
    1e-07
    """
    return 1e-7


@overload
def show_config(*, as_dict: Literal[True]) -> dict[str, Any]: ...
@overload
def show_config(*, as_dict: Literal[False] = ...) -> None: ...
def show_config(*, as_dict: bool = False) -> dict[str, Any] | None:
    """Print the settings that affect speed: versions, CPU features, kernels, order of sums, threads, and reasons.

    With `as_dict`, return a dict of plain values instead.

    >>> sorted(show_config(as_dict=True))[:3]
    ['available_isas', 'commit', 'cpu_features']
    """
    threads, reason = threads_and_reason()
    order, order_reason = order_and_reason()
    report = {
        "version": __version__,
        "commit": __commit__,
        "isa": isa(),
        "available_isas": list(available_isas()),
        "left_out_isas": list(left_out_isas()),
        "cpu_features": cpu_features(),
        "kernels": kernel_names(isa(), order == "reproducible"),
        "gains": what_is_gained(isa(), order == "reproducible"),
        "order": order,
        "order_reason": order_reason,
        **({"lost": lost} if (lost := what_is_lost(available_isas())) else {}),
        "threads": threads,
        "thread_reason": reason,
        "numpy": np.__version__,
        "ml_dtypes": ml_dtypes.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if as_dict:
        return report
    print("\n".join(outline(report)))
    return None
