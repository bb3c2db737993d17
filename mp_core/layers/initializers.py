"""Initializers: functions that return the initial values of weights, with Keras' class names.

Random numbers are determined by the seed (Philox, see :mod:`mp_core.random`) and are the same on every CPU. They differ
from those that Keras draws with the same seed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from mp_core.arrays import Array, dtypes
from mp_core.files.family import Family
from mp_core.layers.randomness import key_of, next_key
from mp_core.layers.seeds import Seed, SeedGenerator, given_seed
from mp_core.ops import random
from mp_core.utilities.absent import refusing
from mp_core.utilities.docstrings import documented, shown
from mp_core.utilities.registry import named_function, own_config

__all__ = [
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
    "deserialize",
    "get",
    "serialize",
]

_TRUNCATED_DEVIATION = 0.87962566103423978
"""The standard deviation of a standard normal distribution truncated to [-2, 2]."""


if not TYPE_CHECKING:  # type checkers must report unknown names
    __getattr__, __dir__ = refusing("initializers", __all__)


class Initializer:
    """The base of the initializers: a subclass defines ``__call__(shape, dtype)`` and ``get_config()``.

    Examples
    --------
    >>> class Ramp(Initializer):
    ...     def __call__(self, shape, dtype=None):
    ...         return np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    >>> from mp_core.layers import Dense
    >>> Dense(2, kernel_initializer=Ramp())(np.float32([[1, 10]]))  # [[1, 10]] @ [[0, 1], [2, 3]]
    array([[20., 31.]], dtype=float32)
    """

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Return an array of that shape and dtype; default dtype: :func:`mp_core.config.floatx`."""
        raise NotImplementedError(f"{type(self).__name__} must define `__call__`")

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the initializer with these arguments, a dictionary. None means the default."""
        given = {key: value for key, value in own_config(config, cls.__name__).items() if value is not None}
        try:
            return cls(**given)
        except TypeError:
            raise ValueError(f"The initializer {cls.__name__} has no such settings; received {given}") from None

    def clone(self) -> Self:
        """Return an initializer with the same arguments."""
        return self.from_config(self.get_config())


@dataclass
class _DataclassInitializer(Initializer):
    """An initializer whose constructor's arguments are dataclass fields."""

    def get_config(self) -> dict[str, Any]:
        config = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return config | ({"seed": given_seed(config["seed"])} if "seed" in config else {})


def _target(dtype: Any) -> np.dtype[Any]:
    """Return the dtype; the default is :func:`mp_core.config.floatx`."""
    return dtypes.dtype_of(dtypes.floatx()) if dtype is None else dtypes.parse(dtype)


@dataclass
@shown("{}(2.0)((2,))", "array([2., 2.], dtype=float32)")
class Constant(_DataclassInitializer):
    """All elements equal to `value`.

    Parameters
    ----------
    value : float
    """

    value: Any = 0.0

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return np.full(shape, self.value, _target(dtype))


@shown("{}()((2,))", "array([0., 0.], dtype=float32)")
class Zeros(Initializer):
    """Zeros."""

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return np.zeros(shape, _target(dtype))


@shown("{}()((2,))", "array([1., 1.], dtype=float32)")
class Ones(Initializer):
    """Ones."""

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return np.ones(shape, _target(dtype))


@dataclass
@shown("{}(2.0)((2, 2))", "array([[2., 0.],\n       [0., 2.]], dtype=float32)")
class Identity(_DataclassInitializer):
    """`gain` on the diagonal of a matrix, zeros elsewhere.

    Parameters
    ----------
    gain : float
    """

    gain: float = 1.0

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        if len(shape) != 2:
            raise ValueError(f"`shape` must be that of a matrix; received {shape}")
        return (self.gain * np.eye(*shape)).astype(_target(dtype))


_seeded = documented(
    last="""
    seed : int or SeedGenerator, optional
        Default: drawn from the seed of the process, see :func:`mp_core.random.set_seed`."""
)


@dataclass
class _RandomInitializer(_DataclassInitializer):
    """The base of random initializers.

    The keys of the random numbers are stored, so that every call returns the same numbers, as in Keras. If `seed` is a
    :class:`~mp_core.random.SeedGenerator`, every call returns new ones.
    """

    _keys: list[Array] = field(default_factory=list, init=False, repr=False, compare=False)

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        target = _target(dtype)
        if not dtypes.is_float(target):
            raise ValueError(f"Weights are drawn in floating-point dtypes only; received dtype {target}")
        return np.asarray(self._values(tuple(shape), self._call_keys())).astype(target)

    def _values(self, shape: tuple[int, ...], keys: Iterator[Array]) -> Array:
        """Return the values in float64."""
        raise NotImplementedError

    def _call_keys(self) -> Iterator[Array]:
        seed: Seed = vars(self)["seed"]
        while isinstance(seed, SeedGenerator):
            yield seed.next()
        for draw in count():
            if draw == len(self._keys):
                self._keys.append(next_key() if seed is None else key_of(seed, draw))
            yield self._keys[draw]


def _uniform(shape: tuple[int, ...], keys: Iterator[Array], low: float, high: float) -> Array:
    return low + (high - low) * random.uniform(next(keys), shape).astype(np.float64)


def _normal(shape: tuple[int, ...], keys: Iterator[Array], mean: float, deviation: float) -> Array:
    return mean + deviation * random.normal(next(keys), shape).astype(np.float64)


def _truncated_normal(shape: tuple[int, ...], keys: Iterator[Array], mean: float, deviation: float) -> Array:
    """Return normal random numbers; numbers beyond two standard deviations are drawn again."""
    drawn = random.normal(next(keys), shape)
    while (far := np.abs(drawn) > 2).any():
        drawn = np.where(far, random.normal(next(keys), shape), drawn)
    return mean + deviation * drawn.astype(np.float64)


@_seeded
@dataclass
@shown("{}(-1.0, 1.0, seed=1)((2,)).round(3)", "array([0.619, 0.054], dtype=float32)")
class RandomUniform(_RandomInitializer):
    """Uniform random numbers in [minval, maxval).

    Parameters
    ----------
    minval, maxval : float
    """

    minval: float = -0.05
    maxval: float = 0.05
    seed: Seed = None

    def _values(self, shape: tuple[int, ...], keys: Iterator[Array]) -> Array:
        return _uniform(shape, keys, self.minval, self.maxval)


@_seeded
@dataclass
@shown("{}(stddev=2.0, seed=1)((2,)).round(3)", "array([0.067, 3.928], dtype=float32)")
class RandomNormal(_RandomInitializer):
    """Normal random numbers.

    Parameters
    ----------
    mean, stddev : float
    """

    mean: float = 0.0
    stddev: float = 0.05
    seed: Seed = None

    def _values(self, shape: tuple[int, ...], keys: Iterator[Array]) -> Array:
        return _normal(shape, keys, self.mean, self.stddev)


@_seeded
@dataclass
class TruncatedNormal(_RandomInitializer):
    """Normal random numbers; numbers beyond two standard deviations are drawn again.

    Parameters
    ----------
    mean, stddev : float

    Examples
    --------
    >>> bool(abs(TruncatedNormal(stddev=1.0)((1000,))).max() <= 2)
    True
    """

    mean: float = 0.0
    stddev: float = 0.05
    seed: Seed = None

    def _values(self, shape: tuple[int, ...], keys: Iterator[Array]) -> Array:
        return _truncated_normal(shape, keys, self.mean, self.stddev)


_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("truncated_normal", "untruncated_normal", "uniform")


def _scaled_by_fan(shape: tuple[int, ...], keys: Iterator[Array], scale: float, mode: str, distribution: str) -> Array:
    """Return random numbers of variance ``scale / fan``; see :class:`VarianceScaling` for the fan."""
    window = int(np.prod(shape[:-2]))
    fan_in, fan_out = (window * n for n in shape[-2:]) if len(shape) > 1 else (int(np.prod(shape)),) * 2
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
    deviation = float(np.sqrt(scale / max(1.0, fan)))
    if distribution == "uniform":
        limit = float(np.sqrt(3.0)) * deviation
        return _uniform(shape, keys, -limit, limit)
    if distribution == "untruncated_normal":
        return _normal(shape, keys, 0.0, deviation)
    return _truncated_normal(shape, keys, 0.0, deviation / _TRUNCATED_DEVIATION)


@_seeded
@dataclass
class VarianceScaling(_RandomInitializer):
    """Random numbers of variance ``scale / fan``.

    Parameters
    ----------
    scale : float
        Above 0.
    mode : {"fan_in", "fan_out", "fan_avg"}
        The fan: the number of inputs (second to last axis), of outputs (last axis), or the mean of both, times the
        product of all other axes, such as the window of a convolution.
    distribution : {"truncated_normal", "untruncated_normal", "uniform"}

    References
    ----------
    Glorot, X. and Bengio, Y.: Understanding the difficulty of training deep feedforward neural networks, 2010.
    He, K. et al.: Delving deep into rectifiers, 2015.

    Examples
    --------
    >>> VarianceScaling(2.0, "fan_avg", "uniform", seed=1)((2, 2)).round(3)
    array([[ 1.073,  0.093],
           [ 0.059, -0.59 ]], dtype=float32)
    """

    scale: float = 1.0
    mode: str = "fan_in"
    distribution: str = "truncated_normal"
    seed: Seed = None

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"`scale` must be above 0; received {self.scale!r}")
        if self.mode not in _MODES:
            raise ValueError(f"`mode` must be one of {_MODES}; received {self.mode!r}")
        if self.distribution not in _DISTRIBUTIONS:
            raise ValueError(f"`distribution` must be one of {_DISTRIBUTIONS}; received {self.distribution!r}")

    def _values(self, shape: tuple[int, ...], keys: Iterator[Array]) -> Array:
        return _scaled_by_fan(shape, keys, self.scale, self.mode, self.distribution)


@dataclass
class _NamedScaling(_RandomInitializer):
    variance: ClassVar[tuple[float, str, str]]
    seed: Seed = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "variance" in vars(cls):
            scale, mode, _ = cls.variance
            fan = {"fan_in": 400, "fan_out": 200, "fan_avg": 300}[mode]
            call = f"{{}}(seed=1)((400, 200)).std().round(3)  # sqrt({scale} / {fan})"
            _seeded(shown(call, f"np.float32({round(float(np.sqrt(scale / fan)), 3)})")(cls))

    def _values(self, shape: tuple[int, ...], keys: Iterator[Array]) -> Array:
        return _scaled_by_fan(shape, keys, *self.variance)


class GlorotUniform(_NamedScaling):
    """``VarianceScaling(1.0, "fan_avg", "uniform", seed)``."""

    variance = 1.0, "fan_avg", "uniform"


class GlorotNormal(_NamedScaling):
    """``VarianceScaling(1.0, "fan_avg", "truncated_normal", seed)``."""

    variance = 1.0, "fan_avg", "truncated_normal"


class HeUniform(_NamedScaling):
    """``VarianceScaling(2.0, "fan_in", "uniform", seed)``."""

    variance = 2.0, "fan_in", "uniform"


class HeNormal(_NamedScaling):
    """``VarianceScaling(2.0, "fan_in", "truncated_normal", seed)``."""

    variance = 2.0, "fan_in", "truncated_normal"


class LecunUniform(_NamedScaling):
    """``VarianceScaling(1.0, "fan_in", "uniform", seed)``."""

    variance = 1.0, "fan_in", "uniform"


class LecunNormal(_NamedScaling):
    """``VarianceScaling(1.0, "fan_in", "truncated_normal", seed)``."""

    variance = 1.0, "fan_in", "truncated_normal"


@_seeded
@dataclass
class Orthogonal(_RandomInitializer):
    """`gain` times a matrix with orthonormal rows or columns, whichever are fewer; leading axes count as rows.

    The matrix is Q of the QR decomposition of normal random numbers, with a positive diagonal of R (Saxe et al., 2013).
    It is computed by the modified Gram-Schmidt process in float64.

    Parameters
    ----------
    gain : float

    Examples
    --------
    >>> q = Orthogonal(seed=1)((3, 2))
    >>> (q.T @ q).round(6) + 0.0
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """

    gain: float = 1.0
    seed: Seed = None

    def _values(self, shape: tuple[int, ...], keys: Iterator[Array]) -> Array:
        if len(shape) < 2:
            raise ValueError(f"`shape` must have at least two axes; received {shape}")
        rows, columns = int(np.prod(shape[:-1])), shape[-1]
        drawn = _normal((max(rows, columns), min(rows, columns)), keys, 0.0, 1.0)
        q = _orthonormal(drawn.T)
        return self.gain * (q.T if rows >= columns else q).reshape(shape)


def _orthonormal(vectors: Array) -> Array:
    """Orthonormalize the rows by the modified Gram-Schmidt process.

    Sums are sequential from first to last, so that their bits do not depend on NumPy's SIMD code.
    """
    q = vectors.copy()
    for i in range(len(q)):
        q[i] /= np.sqrt(np.add.accumulate(q[i] * q[i])[-1])
        along = np.add.accumulate(q[i + 1 :] * q[i], axis=1)[:, -1:]
        q[i + 1 :] -= along * q[i]
    return q


# Keras' other names.
constant, zeros, ones, identity, orthogonal = Constant, Zeros, Ones, Identity, Orthogonal
random_normal, random_uniform, truncated_normal = RandomNormal, RandomUniform, TruncatedNormal
glorot_normal, glorot_uniform, variance_scaling = GlorotNormal, GlorotUniform, VarianceScaling
he_normal, he_uniform, lecun_normal, lecun_uniform = HeNormal, HeUniform, LecunNormal, LecunUniform

_NAMES: dict[str, Any] = {
    name: found
    for name, found in globals().items()
    if isinstance(found, type) and issubclass(found, Initializer) and found is not Initializer and name[0] != "_"
} | {
    "IdentityInitializer": Identity, "LeCunNormal": LecunNormal, "LeCunUniform": LecunUniform, "normal": RandomNormal,
    "OrthogonalInitializer": Orthogonal, "uniform": RandomUniform,
}  # fmt: skip
serialize, deserialize, _get = Family(Initializer, "initializer", _NAMES).functions(__name__)


@shown('{}("he_normal").variance', "(2.0, 'fan_in', 'truncated_normal')")
def get(identifier: Any) -> Callable[[tuple[int, ...], Any], Any]:
    """Return the initializer for a name such as ``"he_normal"``, a configuration or a class.

    A callable is returned unchanged.
    """
    found = named_function(identifier)
    found = found() if isinstance(found, type) else found
    if found is None or (isinstance(found, str) and found not in _NAMES):
        raise ValueError(
            f"Could not interpret initializer: {identifier!r}. Expected a callable or one of {', '.join(_NAMES)}"
        )
    return _get(found)  # type: ignore[no-any-return]


def checked(identifier: Any) -> Any:
    """Check an identifier by :func:`get`; return it, or the object if its class is not one of this module.

    Layers store the result. The name of a user's class may be known only in the current scope.
    """
    found = get(identifier)
    return identifier if type(found) in _NAMES.values() else found


def with_new_keys(initializer: Any) -> Any:
    """Return a copy of a random initializer without a seed, which draws new numbers; return others unchanged."""
    is_unseeded = isinstance(initializer, _RandomInitializer) and vars(initializer)["seed"] is None
    return initializer.clone() if is_unseeded else initializer
