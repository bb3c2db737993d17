"""The base of all layers: calls under a dtype policy, and what quantization and configurations ask of a layer."""

from collections.abc import Callable, Mapping
from threading import RLock
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from mp_core import dtype_policies, dtypes, ops
from mp_core.arrays import refuse_masked
from mp_core.arrays.recorded import note_call
from mp_core.autocast import AutoCastVariable, scope_dtype
from mp_core.core.changes import counted, undone_if_it_fails
from mp_core.core.scopes import Scopes, called_in, called_under, innermost
from mp_core.dtype_policies import DTypePolicy, DTypePolicyMap
from mp_core.dtype_policies.map import policy_at
from mp_core.forms import Form
from mp_core.layers.building import (
    added_losses,
    build_for,
    enclosing_path,
    handed_training,
    placed,
    takes,
    unique_name,
)
from mp_core.layers.configuration import check_without_use, config_of, layer_of, with_policy_as_in_keras
from mp_core.layers.contents import contents_of
from mp_core.layers.ends import end_of, replaceable_property
from mp_core.layers.parts import refuse_part, samples_of_batch
from mp_core.layers.penalties import penalties_in
from mp_core.layers.pickling import checked_state, state_with_types
from mp_core.layers.quantizing import change_policy, copy_under, quantize
from mp_core.layers.variables import VariableOwner
from mp_core.quantizers.quantizer import floating_inputs
from mp_core.utilities.arguments import boolean
from mp_core.utilities.system import lock_for_forks
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Layer"]

Outputs = TypeVar("Outputs", covariant=True)


class _Called(Protocol[Outputs]):
    """To a type checker, what a layer returns is what its method :meth:`Layer.call` returns."""

    @property
    def call(self) -> Callable[..., Outputs]: ...

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


_build_locks = lock_for_forks(RLock)
_UNSCOPED: Any = object()
_PLAIN = (type(None), bool, int, float, str)


class Layer(VariableOwner):
    """A function with variables, computed under a dtype policy.

    Subclasses define ``build(input_shape)``, which calls :meth:`add_weight`, and ``call(inputs, ...)``.

    Parameters
    ----------
    name : str, optional
        Default: the class name in snake case, with a number from the second layer on.
    dtype : DTypePolicy, str, dict or dtype, optional
        The policy; default: :func:`mp_core.dtype_policies.dtype_policy`. A map is looked up by `path` when the layer
        is built.
    trainable : bool
        Whether its variables count as trainable.
    autocast : bool
        Whether floating-point arguments are cast to the compute dtype.
    **kwargs
        Of a layer with ``kernel_initializer`` also ``kernel_regularizer`` and ``kernel_constraint`` (see
        :mod:`mp_core.regularizers` and :mod:`mp_core.constraints`), and so for its other initializers; of every layer
        ``activity_regularizer``, which adds what it says of the outputs to the loss of training. Arguments of
        Keras' layers that mp_core does not have, all of them off; and the shape of a first layer's inputs
        (``input_shape`` ...), which is not needed.

    Raises
    ------
    TypeError
        `autocast` is no bool.
    ValueError
        An argument that does not exist, or is Keras' alone and on; `trainable` is no bool, or `name` no string.

    Examples
    --------
    >>> class Scale(Layer):
    ...     def build(self, input_shape):
    ...         self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")
    ...
    ...     def call(self, inputs):
    ...         return inputs * self.scale
    >>> Scale(dtype="mixed_float16")(np.array([1.0, 2.0]))
    array([1., 2.], dtype=float16)
    """

    _get_policy = staticmethod(dtype_policies.get)  # the tf.keras face has its own rule
    _arrays: tuple[str, ...] = ()
    """The first arguments of :meth:`call`, which must be arrays; a subclass with its own says it anew."""
    supports_masking: bool = False
    """Whether outputs have the mask that :meth:`compute_mask` returns; without it a Sequential drops the mask."""
    _options: tuple[str, ...] = ()
    """The constructor's own arguments, which are attributes too: what a configuration consists of."""
    _told: tuple[str, ...] = ()
    """Those attributes of them that :func:`repr` tells."""
    _modes: tuple[str, ...] = ()
    """The quantization modes in which a layer computes."""
    _keeps_dtype: bool = False
    """Whether the dtype is that of data, which :meth:`with_policy` leaves as it is."""
    _origin: Any = None
    """The first call with symbolic arrays: see :mod:`mp_core.layers.ends`."""
    _build_shapes: Any = None
    """What the first :meth:`build` was called with: a shape, or a dictionary of them by the names of its arguments."""
    _dtype_at_build: str = ""
    """The dtype of variables that the policy said when :meth:`build` was called first."""
    _forms: Mapping[str, dict[str, Any]] = MappingProxyType({})
    """Path below this layer -> the form of the matrix there, which a configuration says."""

    def __init__(
        self,
        *,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        autocast: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if kwargs:
            penalties = penalties_in(kwargs, self._options)
            if penalties:
                self._penalties = penalties
        check_without_use(type(self).__name__, kwargs)
        if not isinstance(trainable, (bool, np.bool_)):
            raise ValueError(f"`trainable` must be a bool; received trainable={trainable!r}")
        if name is not None and not (isinstance(name, str) and name):
            raise ValueError(f"`name` must be a string that is not empty; received name={name!r}")
        self.name = unique_name(type(self).__name__) if name is None else name
        vars(self)["trainable"] = bool(trainable)
        vars(self)["autocast"] = boolean(autocast, "autocast")
        self.built = False
        self.quantized = False
        self._path: str | None = None
        self._dtype_policy = self._get_policy(dtype)
        self._apply_policy()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls):
            cls.build = placed(cls.build)  # type: ignore[method-assign]
        if "call" in vars(cls) and "_arrays" not in vars(cls):
            cls._arrays = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) in _PLAIN and vars(self).get(name, _UNSCOPED) is value and name != "trainable":
            return
        counted(super().__setattr__, name, value)

    @property
    def trainable(self) -> bool:
        """Whether the variables count as trainable; setting it also sets it for the layers below, as in Keras."""
        on: bool = vars(self)["trainable"]
        return on

    @trainable.setter
    def trainable(self, value: bool) -> None:
        on = boolean(value, "trainable")
        for layer in self.flatten():
            vars(layer)["trainable"] = on

    def __delattr__(self, name: str) -> None:
        counted(undone_if_it_fails, contents_of([self]), super().__delattr__, name)

    # ---- the policy

    @property
    def path(self) -> str | None:
        """The names of the enclosing layers and its own, joined by ``/``; None before the layer is built."""
        return self._path

    @property
    def _around(self) -> str:
        """The path below which the layers in this one are."""
        return str(self.path)

    @property
    def dtype_policy(self) -> DTypePolicy:
        """The policy, or the map in which it is looked up.

        Setting it changes what a built layer computes in, not what it stores; a quantized policy quantizes the layer,
        ``"int4_from_..."`` in blocks of 128, so that it becomes ``"int4/128_from_..."``. If the layer has a map, the
        map gets the new policy for `path`.
        """
        return self._dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, value: Any) -> None:
        self._change_policy(self._get_policy(value))

    def _change_policy(self, policy: DTypePolicy) -> None:
        change_policy(self, policy)

    def _set_policy(self, policy: DTypePolicy) -> None:
        owner = self._dtype_policy
        if isinstance(owner, DTypePolicyMap) and self._path:
            owner.replace(self._path, policy)
        else:
            self._dtype_policy = policy
        self._apply_policy()

    def _policy(self) -> DTypePolicy:
        return policy_at(self._dtype_policy, self._path)

    def _apply_policy(self) -> None:
        """Work out once what every call needs: the dtypes of inputs and outputs, and the scopes of its variables."""
        policy = self._policy()
        self._convert_input = policy.convert_input
        self._casting = self.autocast, policy.compute_dtype
        self._applied = policy
        self._compute: Any = dtypes.ALLOWED.get(policy.compute_dtype)
        self._output: Any = dtypes.ALLOWED.get(policy.output_dtype)
        floating = self._compute is not None and dtypes.is_float(self._compute)
        mixed = floating and (policy.compute_dtype != policy.variable_dtype or self._stores_others())
        self._outer_scope = self._compute if mixed else _UNSCOPED
        self._nested_scope = self._compute if floating and self.autocast else None

    def _stores_others(self) -> bool:
        """Whether variables were built under another policy, in another dtype than the compute dtype.

        One that has a dtype of its own, such as those of LoRA, is none of them, as in Keras.
        """
        then = self._dtype_at_build
        is_other = self.built and then != self.compute_dtype
        return is_other and any(v.autocast and v.true_dtype.name == then for v in self.own_variables())

    @property
    def compute_dtype(self) -> str:
        """The dtype in which calls compute, which the policy says."""
        return self._applied.compute_dtype

    @property
    def variable_dtype(self) -> str:
        """The dtype of the variables, which the policy says."""
        return self._applied.variable_dtype

    @property
    def quantization_mode(self) -> str | None:
        """The quantization mode, which the policy says."""
        return self._applied.quantization_mode

    @property
    def autocast(self) -> bool:
        """Whether floating-point arguments are cast to the compute dtype."""
        on: bool = vars(self)["autocast"]
        return on

    @autocast.setter
    def autocast(self, value: bool) -> None:
        undone_if_it_fails(contents_of([self]), self._set_autocast, boolean(value, "autocast"))

    def _set_autocast(self, on: bool) -> None:
        vars(self)["autocast"] = on
        self._apply_policy()

    @property
    def dtype(self) -> str:
        """The dtype of the variables."""
        return self.variable_dtype

    @property
    def input_dtype(self) -> str:
        """The dtype to which inputs are cast."""
        return self.compute_dtype

    def with_policy(self, policy: Any) -> Self:
        """Return a copy that stores, computes and quantizes as if it had been made under another policy.

        A subclass of Dense, EinsumDense or Embedding with a ``call`` of its own stays in floats.

        Parameters
        ----------
        policy : DTypePolicy, str, dict or dtype
            Of this layer and those below it; a map is looked up by their paths.

        Raises
        ------
        ValueError
            The layer is not built, weights are quantized already, or are to be and not finite; a dtype of `policy` is
            not floating-point.
        NotImplementedError
            A layer does not compute in a quantization mode of `policy`.

        Examples
        --------
        >>> from mp_core.layers import Dense
        >>> layer = Dense(2, kernel_initializer="ones")
        >>> layer.build((None, 3))
        >>> layer.with_policy("bfloat16")(np.ones((1, 3))), layer.dtype
        (array([[3, 3]], dtype=bfloat16), 'float32')
        """
        copy: Self = copy_under(self, self._get_policy(policy))
        return copy

    # ---- calls

    @placed
    def build(self, input_shape: Any) -> None:
        """Create the variables for inputs of this shape; layers without any need not define it."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs from inputs that are cast already."""
        raise NotImplementedError(f"{type(self).__name__} does not have a `call` method implemented.")

    def add_loss(self, loss: Any) -> None:
        """Add a number to the loss, from :meth:`call`: a step of training counts it, everywhere else it is left aside.

        Parameters
        ----------
        loss : array or sequence of array
            Of operations of mp_core, so that it is recorded; of an array the sum counts.
        """
        found = added_losses.get()
        if found is not None:
            refuse_part(f"`add_loss` of layer '{self.name}'")
            found.extend(leaves(loss))

    def _add_activity(self, outputs: Any) -> None:
        """Add what the activity regularizer says of the outputs, for each sample, to the loss of a step under way."""
        regularizer = self._penalties.get("activity_regularizer")
        found = added_losses.get()
        if regularizer is not None and found is not None:
            for x in leaves(outputs):
                has_samples = x.ndim and x.shape[0]
                found.append(regularizer(x) * (1.0 / samples_of_batch(x)) if has_samples else regularizer(x))

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the outputs, of which only layers that :attr:`supports_masking` have one.

        Parameters
        ----------
        inputs : ndarray
            Of the call.
        previous_mask : ndarray of bool or None
            The mask of the inputs.
        """
        return previous_mask

    def compute_output_shape(self, *input_shapes: Any) -> Any:
        """Return the shape of the outputs for inputs of these shapes, without building the layer.

        Parameters
        ----------
        *input_shapes : sequence of (int or None), or list or dict of them
            One for each array that a call gets; None is any length.

        Examples
        --------
        >>> from mp_core.layers import Add, Conv1D
        >>> Conv1D(8, 3, strides=2).compute_output_shape((None, 21, 4))
        (None, 10, 8)
        >>> Add().compute_output_shape([(2, 3), (2, 1)])
        (2, 3)
        """
        from mp_core.layers.symbolic import output_shapes

        return output_shapes(self, input_shapes)

    @replaceable_property
    def input(self) -> Any:
        """The symbolic array that the first symbolic call got, or a list if there were several.

        A layer's own attribute of this name comes first.

        Raises
        ------
        AttributeError
            The layer was never called with what :func:`Input` returns, and no functional model or Sequential that is
            built consists of it.

        Examples
        --------
        >>> import mp_core as mp
        >>> x = mp.Input((3,), name="x")
        >>> model = mp.Model(x, mp.layers.Dense(2)(mp.layers.Dense(4, name="features")(x)))
        >>> model.get_layer("features").input
        <KerasTensor shape=(None, 3), dtype=float32, name=x>
        """
        return end_of(self, "input")

    @replaceable_property
    def output(self) -> Any:
        """The symbolic array that the first symbolic call returned, or a list if there were several: see :attr:`input`.

        Examples
        --------
        >>> import mp_core as mp
        >>> x = mp.Input((3,), name="x")
        >>> model = mp.Model(x, mp.layers.Dense(2)(mp.layers.Dense(4, name="features")(x)))
        >>> mp.Model(model.input, model.get_layer("features").output).output_shape
        (None, 4)
        """
        return end_of(self, "output")

    def __call__(self: _Called[Outputs], *args: Any, **kwargs: Any) -> Outputs:
        """Cast the inputs, build on the first call, and run :meth:`call` in the scope of the compute dtype.

        ``training`` reaches :meth:`call`, if it has that argument, and the layers below.
        """
        training = handed_training.get()
        if training is None and "training" not in kwargs:
            return self._run(args, kwargs)  # type: ignore[no-any-return]
        given = kwargs.pop("training", None)
        training = training if given is None else given
        if training is not None and takes(type(self).call, "training"):
            kwargs["training"] = training
        return called_in(handed_training, training, self._run, (args, kwargs))  # type: ignore[no-any-return]

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.built or kwargs or len(args) != 1 or type(args[0]) is not np.ndarray:
            symbolic = note_call(self, (args, kwargs))
            if symbolic is not None:
                return symbolic.called(self, args, kwargs)
            if not self.built:
                return self._first_call(args, kwargs)
            args, kwargs = self._cast_inputs(args, kwargs)
        elif args[0].dtype is not self._compute:
            args = (self._cast_input(args[0]),)
        outer = scope_dtype.get(_UNSCOPED)
        if type(outer) is Scopes:
            outer = innermost(outer, _UNSCOPED)
        scope = self._outer_scope if outer is _UNSCOPED else self._nested_scope
        if scope is outer:
            outputs = self.call(*args, **kwargs)
        else:
            outputs = called_in(scope_dtype, scope, self.call, args, kwargs)
        if self._output is not self._compute:
            outputs = map_leaves(self._cast_output, outputs)
        if self._penalties:
            self._add_activity(outputs)
        return outputs

    def _first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        called_under(_build_locks[0], self._build_for, args, kwargs)
        return called_in(enclosing_path, self._path or "", self._run, (args, kwargs))

    def _build_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Build the layer for the arguments of a call, unless another thread has done so."""
        if not self.built:
            build_for(self, *self._cast_inputs(args, kwargs))

    def _cast_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        cast = map_leaves(self._cast_positional, args), map_leaves(self._cast_input, kwargs)
        given = dict(zip(self._arrays, cast[0], strict=False)) | cast[1]
        for name in self._arrays:
            if name in given and not isinstance(given[name], np.ndarray):
                raise TypeError(f"`{name}` of layer '{self.name}' must be an array; received {given[name]!r}")
        return cast

    def _cast_positional(self, x: Any) -> Any:
        x = self._cast_input(x)
        if x is None or isinstance(x, np.ndarray):
            return x
        raise ValueError(
            "Only input tensors may be passed as positional arguments. The following argument value should be "
            f"passed as a keyword argument: {x} (of type {type(x)})"
        )

    def _cast_input(self, x: Any) -> Any:
        if type(x) is np.ndarray and x.dtype is self._compute:
            return x
        refuse_masked(x, "inputs")
        return self._convert_input(x, *self._casting)

    def _cast_output(self, x: Any) -> Any:
        floating = isinstance(x, np.ndarray) and dtypes.is_float(x.dtype)
        return ops.cast(x, self._output) if floating and x.dtype is not self._output else x

    # ---- quantization

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: Any = None, filters: Any = None
    ) -> None:
        """Quantize the weights of this layer, or of the layers below it, in place.

        Parameters
        ----------
        mode : str, optional
            What a policy's name has before ``_from_``: ``"int8"``, ``"int8/weight_only"``, ``"int4"`` (blocks of 128)
            or ``"int4/<block size>"``, ``"float8"``. Not needed beside a `config`.
        type_check : bool
            Refuse subclasses of the layers that have an implementation.
        config : QuantizationConfig, optional
            One of :mod:`mp_core.quantizers` or of Keras, with the quantizers that its mode has by default.
        filters : str, sequence of str or callable, optional
            Only these layers: regular expressions, one of which is found in the name of a layer, or a function of the
            layer. The policy of what holds them stays as it is.

        Raises
        ------
        ValueError
            The layer is not built, is quantized already, or has weights that are not finite; `mode` does not exist, or
            not work with its policy; `config` says something else than `mode`, or other quantizers; `filters` are
            wrong, or choose no layer that can be quantized.
        NotImplementedError
            The layer, or mp_core, does not compute in `mode`. In every case nothing has changed.

        Examples
        --------
        >>> from mp_core.layers import Dense, Sequential
        >>> model = Sequential([Dense(64, name="hidden"), Dense(2, name="head")])
        >>> model.build((None, 8))
        >>> model.quantize("int8", filters="hidden")
        >>> [layer.quantization_mode for layer in model.layers]
        ['int8', None]
        """
        quantize(self, mode, type_check, config, filters)

    # What a layer with a matrix says of it. The others have none.

    def _mode_under(self, mode: str, quantizers: dict[str, Any] | None) -> str:
        """Return the mode of this layer; raise ValueError for quantizers that are not the default ones."""
        return mode

    def _can_quantize(self, type_check: bool) -> bool:
        """Whether this type, or unless `type_check` a base of it, has a matrix that can be quantized."""
        return False

    def _form_under(self, policy: DTypePolicy) -> Form:
        """Return the form to which a policy quantizes the matrix, checked but without variables."""
        raise NotImplementedError

    def _convert(self, form: Form) -> None:
        """Bring the floats of the matrix into another form."""
        raise NotImplementedError

    def _form_where(self, policy: DTypePolicy) -> Form | None:
        """Return the checked form that `policy` makes of the matrix of this layer; None if it has none, or stays."""
        return None

    def _keeps_form(self, policy: DTypePolicy) -> bool:
        """Whether the matrix need not change its form under another policy."""
        return True

    def _follows_policy(self, variable: AutoCastVariable) -> bool:
        """Whether the policy says the dtype in which a variable is stored."""
        return variable.true_dtype.name == self.dtype

    def _stated_form(self, given: DTypePolicy) -> dict[str, Any] | None:
        """Return what a configuration must say of the form of the matrix, None if a layer under `given` makes it."""
        return None

    # ---- configurations

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, which :meth:`from_config` takes back."""
        return config_of(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the layer of a configuration, Keras' own included.

        As in Keras, the constructor gets a plain policy by its name and any other as an object. Keras' arguments that
        mp_core does not have must be off, its settings of quantizers the default ones. The shape of a first layer's
        inputs is not needed.

        Raises
        ------
        ValueError
            An argument that mp_core does not have is on.
        """
        layer: Self = layer_of(cls, Layer, config)
        return layer

    @classmethod
    def _under_quantizers(cls, config: dict[str, Any], quantizers: Any) -> dict[str, Any]:
        """Return a configuration under what Keras' ``quantization_config`` of it says."""
        floating_inputs(quantizers, ({0}, 2))
        return config

    @classmethod
    def _with_policy_of_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Return a configuration with its policy as Keras hands it to constructors."""
        return with_policy_as_in_keras(config)

    def __repr__(self) -> str:
        own = "".join(f"{name}={getattr(self, name)!r}, " for name in self._told)
        return f"<{type(self).__name__} name={self.name}, {own}policy={self._policy().name}, built={self.built}>"

    def __getstate__(self) -> dict[str, Any]:
        return state_with_types(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(checked_state(self, state))
        self._apply_policy()  # a dtype that was pickled is equal to the original, but not the same object
