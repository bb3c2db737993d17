"""Keras' random changes of images, which are not made here: layers of the identity, in training with a warning."""

import warnings
from typing import Any, ClassVar

from mp_core.arrays import Array
from mp_core.layers.elementwise import floating
from mp_core.layers.layer import Layer
from mp_core.layers.shapes import kept
from mp_core.utilities.docstrings import with_sections

__all__ = [
    "AugMix", "CutMix", "MixUp", "RandAugment", "RandomBrightness", "RandomColorDegeneration", "RandomColorJitter",
    "RandomContrast", "RandomElasticTransform", "RandomErasing", "RandomFlip", "RandomGaussianBlur", "RandomGrayscale",
    "RandomHue", "RandomInvert", "RandomPerspective", "RandomPosterization", "RandomRotation", "RandomSaturation",
    "RandomSharpness", "RandomShear", "RandomTranslation", "RandomZoom",
]  # fmt: skip


_SECTIONS = """
    Parameters
    ----------
    {names}
        Those of Keras, kept for configurations, without effect here.
    **kwargs
        Those of :class:`Layer`.

    Warns
    -----
    UserWarning
        In training, where the images stay as they are: change them before `fit`.

    Examples
    --------
    >>> import numpy as np
    >>> {name}()(np.float32([[[0.25], [0.75]]]), training=False).tolist()
    [[[0.25], [0.75]]]
"""


class Augmentation(Layer):
    """The inputs, in training too, where a warning says so.

    As in Keras, most layers cast integers to the compute dtype.
    """

    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = kept
    _names: ClassVar[tuple[str, ...]]
    _casts_integers: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__doc__ = with_sections(cls.__doc__, _SECTIONS.format(names=", ".join(cls._names), name=cls.__name__))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(self._names, args, strict=False)) | {k: kwargs.pop(k) for k in self._names if k in kwargs}
        super().__init__(**kwargs)
        if len(args) > len(self._names):
            raise TypeError(f"{type(self).__name__} takes {self._names}; received {args!r}")
        self.settings = given

    def call(self, inputs: Array, training: bool | None = False) -> Array:
        """Return the inputs."""
        if training:
            warnings.warn(
                f"{type(self).__name__} '{self.name}' changes nothing in training: mp_core does not compute it. "
                "Change the images before `fit`",
                stacklevel=2,
            )
        return floating(inputs, self._compute) if self._casts_integers else inputs

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, which :meth:`from_config` takes back."""
        return super().get_config() | self.settings


_RANGE = ("value_range", "data_format")
_WARP = ("fill_mode", "interpolation", "fill_value", *_RANGE)


class AugMix(Augmentation):
    """Mixtures of chains of changes: here the identity."""

    _names = ("num_chains", "chain_depth", "factor", "alpha", "all_ops", "interpolation", *_RANGE)


class CutMix(Augmentation):
    """Parts of images in the place of those of others: here the identity."""

    _names = ("factor", *_RANGE)


class MixUp(Augmentation):
    """Mixtures of images: here the identity."""

    _names = ("alpha", *_RANGE)
    _casts_integers = False


class RandAugment(Augmentation):
    """Random changes one after another: here the identity."""

    _names = ("num_ops", "factor", "interpolation", *_RANGE)


class RandomBrightness(Augmentation):
    """Random brightness of images: here the identity."""

    _names = ("factor", *_RANGE)
    _casts_integers = False


class RandomColorDegeneration(Augmentation):
    """Random color degeneration of images: here the identity."""

    _names = ("factor", *_RANGE)
    _casts_integers = False


class RandomColorJitter(Augmentation):
    """Random color jitter of images: here the identity."""

    _names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor", *_RANGE)
    _casts_integers = False


class RandomContrast(Augmentation):
    """Random contrast of images: here the identity."""

    _names = ("factor", *_RANGE)
    _casts_integers = False


class RandomElasticTransform(Augmentation):
    """Random elastic transform of images: here the identity."""

    _names = ("factor", "scale", *_WARP)


class RandomErasing(Augmentation):
    """Random erasing of images: here the identity."""

    _names = ("factor", "scale", "fill_value", *_RANGE)


class RandomFlip(Augmentation):
    """Random flip of images: here the identity."""

    _names = ("mode", *_RANGE)


class RandomGaussianBlur(Augmentation):
    """Random gaussian blur of images: here the identity."""

    _names = ("factor", "kernel_size", "sigma", *_RANGE)


class RandomGrayscale(Augmentation):
    """Random grayscale of images: here the identity."""

    _names = ("factor", *_RANGE)
    _casts_integers = False


class RandomHue(Augmentation):
    """Random hue of images: here the identity."""

    _names = ("factor", *_RANGE)
    _casts_integers = False


class RandomInvert(Augmentation):
    """Random invert of images: here the identity."""

    _names = ("factor", *_RANGE)
    _casts_integers = False


class RandomPerspective(Augmentation):
    """Random perspective of images: here the identity."""

    _names = ("factor", "scale", *_WARP)


class RandomPosterization(Augmentation):
    """Random posterization of images: here the identity."""

    _names = ("factor", *_RANGE)
    _casts_integers = False


class RandomRotation(Augmentation):
    """Random rotation of images: here the identity."""

    _names = ("factor", *_WARP)


class RandomSaturation(Augmentation):
    """Random saturation of images: here the identity."""

    _names = ("factor", *_RANGE)
    _casts_integers = False


class RandomSharpness(Augmentation):
    """Random sharpness of images: here the identity."""

    _names = ("factor", *_RANGE)


class RandomShear(Augmentation):
    """Random shear of images: here the identity."""

    _names = ("x_factor", "y_factor", *_WARP)


class RandomTranslation(Augmentation):
    """Random translation of images: here the identity."""

    _names = ("height_factor", "width_factor", *_WARP)


class RandomZoom(Augmentation):
    """Random zoom of images: here the identity."""

    _names = ("height_factor", "width_factor", *_WARP)
