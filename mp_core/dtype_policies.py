"""The public name of :mod:`mp_core.policies.dtype_policies`."""

from typing import TYPE_CHECKING

from mp_core.policies import dtype_policies
from mp_core.policies.dtype_policies import *  # noqa: F403
from mp_core.utilities.faces import face_of

if not TYPE_CHECKING:  # a type checker reads the star import
    __doc__, __all__, __dir__, __getattr__ = face_of(dtype_policies)
