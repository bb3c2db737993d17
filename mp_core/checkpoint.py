"""The public name of :mod:`mp_core.files.checkpoint`."""

from typing import TYPE_CHECKING

from mp_core.files import checkpoint
from mp_core.files.checkpoint import *  # noqa: F403
from mp_core.utilities.faces import face_of

if not TYPE_CHECKING:  # a type checker reads the star import
    __doc__, __all__, __dir__, __getattr__ = face_of(checkpoint)
