"""Names that Keras' tests import besides layers and losses: mp_core's objects under Keras' names, and helpers.

The helpers replace functions of Keras' backends with which tests prepare arrays. None of them is tested.
"""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

import mp_core as mp
from keras_suite.missing import Missing
from mp_core import dtypes
from mp_core.autocast import autocast_scope
from mp_core.training import models
from mp_core.utilities import tree

__all__ = ["HOMES", "PATCHES", "SOURCES", "STAND_INS"]


class _Like(type):
    """Makes a class whose calls return objects of another one, and whose instances those are."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)  # type: ignore[attr-defined]

    def __instancecheck__(cls, other: Any) -> bool:
        return isinstance(other, cls.kind)  # type: ignore[attr-defined]


class Variable(metaclass=_Like):
    """Keras' variable: the value may be a function of shape and dtype."""

    kind = mp.AutoCastVariable

    @staticmethod
    def make(
        initializer: Any, shape: Any = None, dtype: Any = None, trainable: bool = True, autocast: bool = True,
        aggregation: Any = None, synchronization: Any = None, name: str | None = None, **_: Any,
    ) -> Any:  # fmt: skip
        """Return a variable of mp_core."""
        given = initializer if not isinstance(initializer, str) else mp.initializers.get(initializer)
        value = given(shape, dtype=dtype) if callable(given) and shape is not None else given
        value = convert_to_tensor(value, dtype)
        return mp.AutoCastVariable(value, trainable=trainable, autocast=autocast, name=name or "variable")


class KerasTensor(metaclass=_Like):
    """Keras' symbolic array."""

    kind = mp.KerasTensor

    @staticmethod
    def make(shape: Any, dtype: Any = "float32", sparse: Any = False, ragged: Any = False, name: Any = None) -> Any:
        """Return an input of mp_core."""
        if sparse or ragged:
            Missing("sparse and ragged arrays")._fail()
        return mp.Input(batch_shape=tuple(shape), dtype=dtype, name=name)


def convert_to_tensor(x: Any, dtype: Any = None, sparse: Any = None, ragged: Any = None) -> Any:
    """Return an array as Keras makes it: of Python's numbers in float32 or int32, float64 as float32."""
    if isinstance(x, mp.AutoCastVariable):
        x = x.numpy()
    if isinstance(x, mp.KerasTensor):
        return x
    array = np.asarray(x)
    if dtype is None and not isinstance(x, np.ndarray | np.generic):
        dtype = {"f": "float32", "i": "int32"}.get(array.dtype.kind)
    elif dtype is None and array.dtype == np.float64:
        dtype = "float32"
    return (
        array
        if dtype is None
        else mp.cast(array, dtype)
        if dtypes.is_float(array.dtype)
        else array.astype(dtypes.dtype_of(dtype))
    )


def _filled(value: Any) -> Callable[..., Any]:
    return lambda shape, dtype="float32": np.full(shape, value, dtypes.dtype_of(dtype or "float32"))


def _drawn(draw: Callable[..., Any]) -> Callable[..., Any]:
    def call(shape: Any, *ends: Any, dtype: Any = "float32", seed: Any = None, **named: Any) -> Any:
        if isinstance(seed, mp.random.SeedGenerator):
            seed = int(seed.next()[1])
        values = draw(np.random.default_rng(seed if isinstance(seed, int) else 0), shape, *ends, **named)
        return mp.cast(np.asarray(values, np.float32), dtype) if np.asarray(values).dtype.kind == "f" else values

    return call


def _standard(dtype: Any) -> str:
    return mp.dtype_policies.standardize_dtype(dtype)


def _same_structure(first: Any, second: Any, **_: Any) -> None:
    empty = [tree.map_leaves(lambda _: None, part) for part in (first, second)]
    if empty[0] != empty[1]:
        raise ValueError(f"structures differ: {empty[0]} and {empty[1]}")


def _map_structure(function: Callable[..., Any], *trees: Any, **_: Any) -> Any:
    waiting = [iter(list(tree.leaves(part))) for part in trees[1:]]
    return tree.map_leaves(lambda x: function(x, *map(next, waiting)), trees[0])


def _map_structure_up_to(shallow: Any, function: Callable[..., Any], *trees: Any) -> Any:
    """Call a function with the parts of trees that lie where `shallow` has leaves."""
    if isinstance(shallow, dict):
        return {k: _map_structure_up_to(x, function, *(part[k] for part in trees)) for k, x in shallow.items()}
    if isinstance(shallow, list | tuple):
        return [_map_structure_up_to(x, function, *parts) for x, *parts in zip(shallow, *trees, strict=True)]
    return function(*trees)


def _is_shape(x: Any) -> bool:
    return isinstance(x, list | tuple) and all(isinstance(n, int | None) for n in x)


def _map_shapes(function: Callable[[Any], Any], shapes: Any) -> Any:
    if _is_shape(shapes):
        return function(shapes)
    if isinstance(shapes, dict):
        return {name: _map_shapes(function, shape) for name, shape in shapes.items()}
    return type(shapes)(_map_shapes(function, shape) for shape in shapes)


def _output_spec(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a function of layers or operations returns for symbolic arrays."""
    return function(*args, **kwargs)


def _for_axes(value: Any, axes: int) -> tuple[Any, ...]:
    return tuple(value)[:axes] if isinstance(value, list | tuple) else (value,) * axes


def _transposed(length: int, size: int, stride: int, padding: str, more: int | None, dilation: int) -> tuple[int, ...]:
    """Return how many places a transposed convolution has, and JAX' padding before and behind."""
    span = dilation * (size - 1) + 1
    if padding == "valid":
        more = max(stride - span, 0) if more is None else more
        return (length - 1) * stride + span + more, span - 1, span - 1 + more
    last = stride if more is None else span % 2 + more
    before = min((span + last - 1) // 2, span - 1)
    return (length - 1) * stride + last, before, span + last - 2 - before


def _transposed_axes(lengths: Any, sizes: Any, *options: Any) -> list[tuple[int, ...]]:
    """Return :func:`_transposed` of each axis; options are strides, padding, output_padding and dilation_rate."""
    axes = len(lengths)
    return [_transposed(*each) for each in zip(lengths, *(_for_axes(x, axes) for x in (sizes, *options)), strict=True)]


def _transposed_shape(
    input_shape: Any, kernel_size: Any, filters: int, strides: Any, padding: str, output_padding: Any = None,
    data_format: str = "channels_last", dilation_rate: Any = 1,
) -> list[int]:  # fmt: skip
    is_last = data_format == "channels_last"
    lengths = input_shape[1:-1] if is_last else input_shape[2:]
    places = [
        axis[0] for axis in _transposed_axes(lengths, kernel_size, strides, padding, output_padding, dilation_rate)
    ]
    return [input_shape[0], *places, filters] if is_last else [input_shape[0], filters, *places]


def _transposed_padding(
    input_shape: Any, kernel_shape: Any, strides: Any, padding: str, output_padding: Any, dilation_rate: Any
) -> list[tuple[int, ...]]:
    options = (kernel_shape, strides, padding, output_padding, dilation_rate)
    return [axis[1:] for axis in _transposed_axes(input_shape[1:-1], *options)]


def _seed_generators(layer: Any) -> list[Any]:
    held = [item for part in layer.flatten() for item in tree.leaves(vars(part))]
    return list({id(x): x for x in held if isinstance(x, mp.random.SeedGenerator)}.values())


_ARRAYS = {
    "convert_to_tensor": convert_to_tensor,
    "convert_to_numpy": lambda x: np.asarray(x.numpy() if isinstance(x, mp.AutoCastVariable) else x),
    "is_tensor": lambda x: isinstance(x, np.ndarray | mp.KerasTensor),
    "shape": lambda x: tuple(x.shape),
    "cast": lambda x, dtype: convert_to_tensor(x, dtype),
    "is_keras_tensor": lambda x: isinstance(x, mp.KerasTensor),
}
_CREATED = {
    "ones": _filled(1), "zeros": _filled(0), "array": convert_to_tensor,
    "full": lambda shape, value, dtype=None: convert_to_tensor(np.full(shape, value), dtype),
    "arange": lambda *args, dtype=None: convert_to_tensor(np.arange(*args).tolist(), dtype),
    "eye": lambda n, dtype="float32": np.eye(n, dtype=dtype),
    "one_hot": lambda x, num_classes, dtype="float32": np.eye(num_classes, dtype=dtype)[np.asarray(x)],
}  # fmt: skip
_FROM_NUMPY = (
    "all", "any", "abs", "ones_like", "zeros_like", "full_like", "allclose", "isnan", "isfinite", "tile", "repeat",
    "linspace", "prod", "sort", "argsort", "take", "cumsum", "einsum", "dot", "logical_and", "logical_or",
    "logical_not", "floor", "ceil", "round", "sign", "sin", "cos",
)  # fmt: skip
_NUMPY = {name: getattr(np, name) for name in _FROM_NUMPY if not hasattr(mp.ops, name)}
_RANDOM = {
    "SeedGenerator": mp.random.SeedGenerator,
    "uniform": _drawn(
        lambda rng, shape, low=0.0, high=1.0, minval=0.0, maxval=1.0: rng.uniform(
            low or minval, high if high != 1.0 else maxval, shape
        )
    ),
    "normal": _drawn(lambda rng, shape, mean=0.0, stddev=1.0: rng.normal(mean, stddev, shape)),
    "randint": _drawn(lambda rng, shape, minval, maxval: rng.integers(minval, maxval, shape, dtype=np.int32)),
}
_CONFIG = {
    "image_data_format": lambda: "channels_last",
    "set_image_data_format": lambda data_format: (
        None if data_format == "channels_last" else Missing("channels_first")._fail()
    ),
    "epsilon": lambda: 1e-7,
    "floatx": mp.config.floatx,
    "disable_flash_attention": lambda: None,
    "enable_flash_attention": lambda: None,
    "set_floatx": mp.config.set_floatx,
    "dtype_policy": mp.config.dtype_policy,
    "set_dtype_policy": mp.config.set_dtype_policy,
}
_BACKEND = _ARRAYS | _CONFIG | {
    "backend": lambda: "mp_core",
    "Variable": Variable,
    "KerasTensor": KerasTensor,
    "standardize_dtype": _standard,
    "is_float_dtype": lambda dtype: dtypes.is_float(dtypes.dtype_of(dtype)),
    "is_int_dtype": lambda dtype: np.dtype(dtype).kind in "iu",
    "SUPPORTS_SPARSE_TENSORS": False,
    "SUPPORTS_RAGGED_TENSORS": False,
    "SUPPORTS_COMPLEX_DTYPES": False,
    "AutocastScope": autocast_scope,
    "device": lambda _: nullcontext(),
    "name_scope": lambda *_, **__: nullcontext(),
    "is_nnx_enabled": lambda: False,
    "clear_session": lambda free_memory=True: mp.utils.clear_session(),
    "SeedGenerator": mp.random.SeedGenerator,
    "is_flash_attention_enabled": lambda: None,
    "compute_output_spec": _output_spec,
    "standardize_shape": tuple,
}  # fmt: skip

STAND_INS: dict[str, dict[str, Any]] = {
    "keras": {"__version__": "3.15.1"},
    "keras.src.backend": _BACKEND,
    "keras.src.backend.config": _CONFIG | {"backend": lambda: "mp_core"},
    "keras.src.backend.random": _RANDOM,
    "keras.src.backend.common.backend_utils": {
        "compute_conv_transpose_output_shape": _transposed_shape,
        "compute_conv_transpose_padding_args_for_jax": _transposed_padding,
    },
    "keras.src.backend.numpy": _CREATED | _NUMPY,
    "keras.config": _CONFIG,
    "keras.src.ops": _ARRAYS | _CREATED | _NUMPY,
    "keras.ops": _ARRAYS | _CREATED | _NUMPY,
    **dict.fromkeys(("keras.random", "keras.src.random", "keras.src.ops.random", "keras.ops.random"), _RANDOM),
    "keras.src.tree": {
        "flatten": lambda x: list(tree.leaves(x)),
        "map_structure": _map_structure,
        "map_shape_structure": _map_shapes,
        "map_structure_up_to": _map_structure_up_to,
        "assert_same_structure": _same_structure,
        "is_nested": lambda x: isinstance(x, list | tuple | dict),
    },
    "keras.src.dtype_policies.dtype_policy": {
        "dtype_policy": mp.config.dtype_policy,
        "set_dtype_policy": mp.config.set_dtype_policy,
    },
    "keras.src.metrics.metrics_utils": {
        "AUCCurve": SimpleNamespace(ROC="ROC", PR="PR", PRGAIN="PRGAIN"),
        "AUCSummationMethod": SimpleNamespace(INTERPOLATION="interpolation", MAJORING="majoring", MINORING="minoring"),
    },
    "keras.src.saving.saving_lib": {
        "_CONFIG_FILENAME": "config.json",
        "_METADATA_FILENAME": "metadata.json",
        "_VARS_FNAME_H5": "model.weights.h5",
    },
    "keras.src.utils": {"removesuffix": str.removesuffix},
    "keras.src.utils.traceback_utils": {
        "is_traceback_filtering_enabled": lambda: False,
        "disable_traceback_filtering": lambda: None,
        "enable_traceback_filtering": lambda: None,
    },
    "conftest": {"skip_if_backend": lambda *_: lambda function: function},
}
"""Module of Keras -> name -> what its tests find there; those of modules below it too."""

HOMES: dict[str, tuple[Any, ...]] = {
    "keras": (mp, mp.saving),
    "keras.src": (mp,),
    **{
        f"{top}.{name}": (getattr(mp, name),)
        for top in ("keras", "keras.src")
        for name in (
            "activations", "callbacks", "constraints", "dtype_policies", "initializers", "layers", "losses", "metrics",
            "ops", "optimizers", "quantizers", "regularizers", "saving", "utils", "random",
        )
    },
    "keras.src.models": (mp, mp.models),
    "keras.models": (mp, mp.models),
    "keras.src.optimizers.schedules": (mp.optimizers.schedules,),
    "keras.optimizers.schedules": (mp.optimizers.schedules,),
    "keras.src.trainers": (mp.utils, models),
    "keras.src.backend": (),
    "keras.src.tree": (),
    "keras.config": (mp.config,),
}  # fmt: skip
"""Module of Keras -> the modules of mp_core that have its names, those of modules below it too."""

PATCHES: dict[str, dict[str, Any]] = {
    "keras.src.testing.test_case": {"get_seed_generators": _seed_generators},
}
"""Module of Keras that is run as it is -> names that are replaced in it afterwards."""

SOURCES: dict[str, dict[str, str]] = {
    "keras.src.trainers.trainer_test": {
        'raise ImportError(f"Invalid backend: {backend.backend()}")': "from keras.src.trainers.trainer import Trainer",
        "with backend.device(CPU_DEVICES[backend.backend()]):": "if True:",
    },
}
"""Module of Keras -> lines that only its backends can run -> what is run instead."""
