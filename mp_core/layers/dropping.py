"""Dropout and noise layers: they change elements at random in training, and are the identity in inference."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.layers.parts import rows_before
from mp_core.layers.pointwise import Identity
from mp_core.layers.seeds import Seed, generator_of, given_seed
from mp_core.ops.elementwise import floating, rounded
from mp_core.ops.random import dropout, normal, uniform
from mp_core.ops.spatial import data_format_of
from mp_core.utilities.arguments import number, positive_integer, share
from mp_core.utilities.docstrings import with_sections

__all__ = [
    "AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D", "SpatialDropout2D",
    "SpatialDropout3D",
]  # fmt: skip

_SEED = """seed : int or SeedGenerator, optional
        Source of the random numbers. The same seed gives the same numbers in every process. Default: a new seed.
    **kwargs : those of :class:`Layer`
    """
_RATE = f"""
    Parameters
    ----------
    rate : float
        Fraction of elements that training drops, from 0 to 1.
    {_SEED}"""


class _RandomLayer(Identity):
    """The base of dropout and noise layers: the identity except in training."""

    _parameters: ClassVar[str] = _RATE
    rate: float

    _sample_independence = "in inference"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__doc__ = with_sections(cls.__doc__, cls._parameters)

    def __init__(self, seed: Seed = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seed_generator, self.seed = generator_of(seed), given_seed(seed)

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        """Return the inputs; in training, change them at random."""
        if not training or not self._is_active():
            return inputs
        return self._randomized(floating(inputs, self._compute), self.seed_generator.next())

    def _is_active(self) -> bool:
        return self.rate > 0

    def _randomized(self, inputs: Array, key: Array) -> Array:
        raise NotImplementedError


class _DropoutLayer(_RandomLayer):
    _options: tuple[str, ...] = ("rate", "seed")
    _repr_arguments = ("rate",)

    def __init__(self, rate: float, seed: Seed = None, **kwargs: Any) -> None:
        super().__init__(seed, **kwargs)
        self.rate = share(rate, "rate")

    def _randomized(self, inputs: Array, key: Array) -> Array:
        return dropout(inputs, key, self.rate, self._noise_shape(inputs), rows_before(inputs, self.name))

    def _noise_shape(self, inputs: Array) -> Sequence[int | None] | None:
        return None

    def _odds(self) -> float:
        if self.rate == 1:
            raise ValueError(f"`rate` of layer '{self.name}' must be below 1 in training; received 1")
        return self.rate / (1 - self.rate)


_NOISE_SHAPE = f"""
    Parameters
    ----------
    rate : float
        Fraction of elements that training drops, from 0 to 1.
    noise_shape : sequence of int or None, optional
        The shape of the random numbers. Along an axis of length 1, all elements share one random number. None stands
        for a length of the inputs, or for their whole shape.
    {_SEED}"""


class _NoiseShapeDropout(_DropoutLayer):
    _parameters = _NOISE_SHAPE
    _options = ("rate", "noise_shape", "seed")

    def __init__(
        self,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rate, seed, **kwargs)
        if not isinstance(noise_shape, list | tuple | None):
            raise ValueError(f"`noise_shape` must be a sequence of int or None; received {noise_shape!r}")
        self.noise_shape = (
            None
            if noise_shape is None
            else tuple(None if n is None else positive_integer(n, "noise_shape") for n in noise_shape)
        )

    def _noise_shape(self, inputs: Array) -> Sequence[int | None] | None:
        return self.noise_shape


class Dropout(_NoiseShapeDropout):
    """In training, set a fraction of the elements to 0 and divide the others by ``1 - rate``.

    Examples
    --------
    >>> x = np.float32([[1, 1, 1, 1, 1, 1, 1, 1]])
    >>> Dropout(0.5, seed=1)(x, training=True)  # 0, or 1 / (1 - 0.5)
    array([[0., 2., 0., 0., 2., 0., 2., 0.]], dtype=float32)
    >>> Dropout(0.5)(x)  # inference
    array([[1., 1., 1., 1., 1., 1., 1., 1.]], dtype=float32)
    """


class AlphaDropout(_NoiseShapeDropout):
    """In training, drop elements so that the mean and variance of outputs of ``selu`` are preserved.

    Examples
    --------
    >>> x = np.random.default_rng(1).standard_normal((1, 100000)).astype(np.float32)
    >>> y = AlphaDropout(0.5, seed=1)(x, training=True)
    >>> float(y.mean().round(1)) + 0.0, float(y.std().round(1))  # as in x
    (0.0, 1.0)
    """

    def _randomized(self, inputs: Array, key: Array) -> Array:
        lowest = -1.6732632423543772 * 1.0507009873554805
        self._odds()
        factor = 1 / math.sqrt((1 - self.rate) * (1 + self.rate * lowest**2))
        shift = -factor * lowest * self.rate
        given = inputs.shape if self.noise_shape is None else self.noise_shape
        shape = [n if own is None else own for own, n in zip(given, inputs.shape, strict=True)]
        before = rows_before(inputs, self.name) if self.noise_shape is None or self.noise_shape[0] != 1 else None
        kept = uniform(key, shape, before) >= F32.type(self.rate)
        return rounded(lambda x: np.where(kept, x, x.dtype.type(lowest)) * factor + shift, inputs)


class GaussianDropout(_DropoutLayer):
    """In training, multiply by normal random numbers of mean 1 and standard deviation ``sqrt(rate / (1 - rate))``.

    Examples
    --------
    >>> y = GaussianDropout(0.2, seed=1)(np.ones((1, 100000), np.float32), training=True)
    >>> y.mean().round(2), y.std().round(2)  # 1, sqrt(0.2 / 0.8)
    (np.float32(1.0), np.float32(0.5))
    """

    def _randomized(self, inputs: Array, key: Array) -> Array:
        deviation, noise = math.sqrt(self._odds()), normal(key, inputs.shape, rows_before(inputs, self.name))
        return rounded(lambda x: x * (ops.cast(noise, x.dtype) * deviation + 1.0), inputs)


class SpatialDropout1D(_DropoutLayer):
    """In training, set a fraction of the channels of each sequence (batch, steps, channels) to 0.

    Examples
    --------
    >>> SpatialDropout1D(0.5, seed=1)(np.ones((1, 3, 4), np.float32), training=True)  # 3 steps, 4 channels
    array([[[0., 2., 0., 0.],
            [0., 2., 0., 0.],
            [0., 2., 0., 0.]]], dtype=float32)
    """

    def _noise_shape(self, inputs: Array) -> Sequence[int | None]:
        return None, 1, None


_CHANNELS = f"""
    Parameters
    ----------
    rate : float
        Fraction of channels that training sets to 0.
    data_format : {{"channels_last", "channels_first"}}, optional
    {_SEED}"""


class _ChannelDropout(_DropoutLayer):
    _parameters = _CHANNELS
    _options = ("rate", "seed", "data_format")
    _rank: ClassVar[int]

    def __init__(
        self,
        rate: float,
        data_format: str | None = None,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(rate, seed, **kwargs)
        self.data_format = data_format_of(data_format)

    def _noise_shape(self, inputs: Array) -> Sequence[int | None]:
        places = (1,) * self._rank
        return (None, *places, None) if self.data_format == "channels_last" else (None, None, *places)


class SpatialDropout2D(_ChannelDropout):
    """In training, set a fraction of the channels of each image to 0 and divide the others by ``1 - rate``.

    Examples
    --------
    >>> images = SpatialDropout2D(0.5, seed=1)(np.ones((2, 5, 5, 4), np.float32), training=True)
    >>> images[:, 0, 0]  # 2 images, 4 channels; all 25 positions are alike
    array([[0., 2., 0., 0.],
           [2., 0., 2., 0.]], dtype=float32)
    """

    _rank = 2


class SpatialDropout3D(_ChannelDropout):
    """In training, set a fraction of the channels of each volume to 0 and divide the others by ``1 - rate``.

    Examples
    --------
    >>> layer = SpatialDropout3D(0.5, data_format="channels_first", seed=1)
    >>> layer(np.ones((1, 4, 3, 3, 3), np.float32), training=True).sum((2, 3, 4))  # 0, or 2 at 27 positions
    array([[ 0., 54.,  0.,  0.]], dtype=float32)
    """

    _rank = 3


class GaussianNoise(_RandomLayer):
    """In training, add normal random numbers of mean 0 and a given standard deviation.

    Examples
    --------
    >>> y = GaussianNoise(0.25, seed=1)(np.full((1, 100000), 3, np.float32), training=True)
    >>> y.mean().round(2), y.std().round(2)
    (np.float32(3.0), np.float32(0.25))
    """

    _parameters = f"""
    Parameters
    ----------
    stddev : float
        The standard deviation.
    {_SEED}"""
    _options = ("stddev", "seed")

    def __init__(self, stddev: float, seed: Seed = None, **kwargs: Any) -> None:
        super().__init__(seed, **kwargs)
        self.stddev = number(stddev, "stddev", 0.0)

    def _is_active(self) -> bool:
        return self.stddev > 0

    def _randomized(self, inputs: Array, key: Array) -> Array:
        noise = normal(key, inputs.shape, rows_before(inputs, self.name))
        return rounded(lambda x: x + ops.cast(noise, x.dtype) * self.stddev, inputs)
