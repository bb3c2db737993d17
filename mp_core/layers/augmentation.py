"""Keras' image augmentation layers: the identity in inference, an error in training.

mp_core does not compute augmentation. The table at the end of the file lists the names and settings of the layers, and
whether they cast integers.
"""

from types import MappingProxyType
from typing import Any, ClassVar, cast

import numpy as np

from mp_core.arrays import Array
from mp_core.layers.layer import Layer
from mp_core.layers.shapes import same_shape
from mp_core.ops.elementwise import floating
from mp_core.utilities.names import snake_case

__all__ = [
    "AugMix", "CutMix", "MixUp", "RandAugment", "RandomBrightness", "RandomColorDegeneration", "RandomColorJitter",
    "RandomContrast", "RandomElasticTransform", "RandomErasing", "RandomFlip", "RandomGaussianBlur", "RandomGrayscale",
    "RandomHue", "RandomInvert", "RandomPerspective", "RandomPosterization", "RandomRotation", "RandomSaturation",
    "RandomSharpness", "RandomShear", "RandomTranslation", "RandomZoom",
]  # fmt: skip


_TEXT = """{what}; the identity in inference.

    Parameters
    ----------
    {names}
        Arguments of Keras. They are stored in configurations, and have no effect.
    **kwargs : those of :class:`Layer`

    Raises
    ------
    NotImplementedError
        In training, unless all factors are 0. Augment the images before `fit` instead.

    Examples
    --------
    >>> {name}()(np.float32([[[0.25], [0.75]]]), training=False).tolist()
    [[[0.25], [0.75]]]
"""


class Augmentation(Layer, nameable=False):
    """The base of augmentation layers: returns the inputs; raises in training, where it would have to change them.

    As in Keras, most of the layers cast integers to the compute dtype.
    """

    _sample_independence = "in inference"
    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = same_shape
    _lacking = MappingProxyType({"seed": None})
    _names: ClassVar[tuple[str, ...]]
    _casts_integers: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(self._names, args, strict=False)) | {k: kwargs.pop(k) for k in self._names if k in kwargs}
        super().__init__(**kwargs)
        if len(args) > len(self._names):
            raise TypeError(f"{type(self).__name__} takes {self._names}; received {args!r}")
        self.settings = given

    def call(self, inputs: Array, training: bool | None = False) -> Array:
        """Return the inputs; in training raise NotImplementedError, unless all factors are 0."""
        if training and not self._is_off:
            raise NotImplementedError(
                f"{type(self).__name__} '{self.name}' changes images in training, which mp_core does not compute: "
                "change the images before `fit`, and train a model without this layer. In inference it is the identity"
            )
        return floating(inputs, self._compute) if self._casts_integers else inputs

    @property
    def _is_off(self) -> bool:
        """Whether factors were given and all of them are 0."""
        factors = [value for name, value in self.settings.items() if name.endswith("factor")]
        return bool(factors) and not np.any([np.max(np.abs(value)) for value in factors])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self.settings


def _layer(name: str, settings: str, casts_integers: bool = True, what: str | None = None) -> type[Augmentation]:
    """Return a new layer class with Keras' settings; `what` is the summary, by default derived from the name."""
    names = (*settings.split(), "value_range", "data_format")
    what = f"{snake_case(name).replace('_', ' ').capitalize()} of images" if what is None else what
    text = _TEXT.format(what=what, names=", ".join(names), name=name)
    own = {"__doc__": text, "__module__": __name__, "_names": names, "_casts_integers": casts_integers}
    return cast("type[Augmentation]", type(name, (Augmentation,), own))


_WARP = "fill_mode interpolation fill_value"

AugMix = _layer(
    "AugMix", "num_chains chain_depth factor alpha all_ops interpolation", True, "Mixtures of augmentation chains"
)
CutMix = _layer("CutMix", "factor", True, "Parts of images replaced by parts of other images")
MixUp = _layer("MixUp", "alpha", False, "Mixtures of images")
RandAugment = _layer("RandAugment", "num_ops factor interpolation", True, "A sequence of random augmentations")
RandomBrightness = _layer("RandomBrightness", "factor", False)
RandomColorDegeneration = _layer("RandomColorDegeneration", "factor", False)
RandomColorJitter = _layer("RandomColorJitter", "brightness_factor contrast_factor saturation_factor hue_factor", False)
RandomContrast = _layer("RandomContrast", "factor", False)
RandomElasticTransform = _layer("RandomElasticTransform", f"factor scale {_WARP}")
RandomErasing = _layer("RandomErasing", "factor scale fill_value")
RandomFlip = _layer("RandomFlip", "mode")
RandomGaussianBlur = _layer("RandomGaussianBlur", "factor kernel_size sigma")
RandomGrayscale = _layer("RandomGrayscale", "factor", False)
RandomHue = _layer("RandomHue", "factor", False)
RandomInvert = _layer("RandomInvert", "factor", False)
RandomPerspective = _layer("RandomPerspective", f"factor scale {_WARP}")
RandomPosterization = _layer("RandomPosterization", "factor", False)
RandomRotation = _layer("RandomRotation", f"factor {_WARP}")
RandomSaturation = _layer("RandomSaturation", "factor", False)
RandomSharpness = _layer("RandomSharpness", "factor")
RandomShear = _layer("RandomShear", f"x_factor y_factor {_WARP}")
RandomTranslation = _layer("RandomTranslation", f"height_factor width_factor {_WARP}")
RandomZoom = _layer("RandomZoom", f"height_factor width_factor {_WARP}")
