"""The public name of :mod:`mp_core.arrays.dtypes`."""

from mp_core.arrays.dtypes import *  # noqa: F403
from mp_core.arrays.dtypes import __all__ as __all__
from mp_core.arrays.dtypes import __dir__ as __dir__
