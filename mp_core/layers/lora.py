"""Low-rank adaptation (LoRA) of layers with a matrix: two thin matrices are trained, the matrix is frozen."""

from collections.abc import Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, cast
from mp_core.arrays.quantization import QuantizedArray
from mp_core.core.changes import undone_if_it_fails
from mp_core.layers.base.contents import contents_of
from mp_core.layers.forms import Form
from mp_core.layers.matrix import MatrixLayer
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.autocast.variable import as_stored, assign_each
from mp_core.utilities.arguments import positive, positive_integer

__all__ = ["AdaptableLayer", "LoRA", "adapt", "drop_lora", "lora_of", "lora_variables"]

_THIN_NAMES = ("lora_a", "lora_b")
"""The names of both thin matrices in files of mp_core."""


class LoRA(NamedTuple):
    """An addend of a matrix: ``alpha / rank * a @ b``, where `a` has `rank` columns."""

    rank: int
    alpha: float
    a: AutoCastVariable
    b: AutoCastVariable

    def added(self, outputs: Array, inner: Array, columns: slice = slice(None)) -> Array:
        """Return ``outputs + alpha / rank * inner @ b[:, columns]``, summed in float32 and rounded once."""
        dtype = outputs.dtype
        b = self.b.derived(("lora", dtype, self.alpha), lambda stored: cast(self._scaled(stored), dtype))
        result: Array = ops.matmul(inner, b[:, columns], out_dtype=dtype, residual=outputs)
        return result

    def delta(self) -> Array:
        """Return ``alpha / rank * a @ b`` in float32, in the shape of the layer's variable."""
        return self._scaled(ops.matmul(self.a.numpy(), self.b.numpy()))

    def _scaled(self, x: Array) -> Array:
        return x if self.alpha == self.rank else x * (self.alpha / self.rank)


class AdaptableLayer(MatrixLayer):
    """A layer whose matrix can be adapted by LoRA.

    When the layer is built, `lora_rank` and `lora_alpha`, if given, are passed to :meth:`enable_lora`.
    """

    _lora: LoRA | None = None
    _requested_lora: tuple[int, float] | None = None

    def __init__(self, *, lora_rank: int | None = None, lora_alpha: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if lora_rank is not None:
            self._requested_lora = _checked_numbers(lora_rank, lora_alpha, "lora_rank")
            self._check_constraint()

    @property
    def lora_enabled(self) -> bool:
        """Whether the layer has ``lora_kernel_a`` and ``lora_kernel_b`` (a table: ``lora_embeddings_a``, ``..._b``)."""
        return self._lora is not None

    @property
    def lora_rank(self) -> int | None:
        """The rank of the thin matrices; None without LoRA."""
        return self._rank_and_alpha[0]

    @property
    def lora_alpha(self) -> float | None:
        """The product of the thin matrices is multiplied by ``lora_alpha / lora_rank``; None without LoRA."""
        return self._rank_and_alpha[1]

    @property
    def _rank_and_alpha(self) -> tuple[int | None, float | None]:
        return self._requested_lora or (None, None) if self._lora is None else self._lora[:2]

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: Any = "he_uniform",
        b_initializer: Any = "zeros",
    ) -> None:
        """Freeze the matrix W, and train ``W + lora_alpha / rank * a @ b``, as Keras' method does.

        - W may be floats or codes of any scheme, and does not change. A bias stays trainable.
        - Files store the sum; if the layer is quantized, the sum is quantized again.
        - The attribute ``kernel`` (a table: ``embeddings``) becomes an array: the sum, in the compute dtype. W is
          ``layer.form.variables["kernel"]``.

        Parameters
        ----------
        rank : int
            The number of columns of `a` and of rows of `b`. Both are float32 under every policy.
        lora_alpha : float, optional
            Default: `rank`.
        a_initializer, b_initializer : str, dict or callable
            For shapes ``kernel.shape[:-1] + (rank,)`` and ``(rank, kernel.shape[-1])``. One of them should be "zeros",
            so that outputs do not change at first.

        Raises
        ------
        ValueError
            The layer is not built, has LoRA already, or has a constraint on its matrix.
        NotImplementedError
            The layer uses delayed float8 scaling. After any error nothing has changed.

        Examples
        --------
        >>> from mp_core.layers import Dense
        >>> layer = Dense(3)
        >>> layer.build((None, 8))
        >>> layer.quantize("int8")
        >>> layer.enable_lora(2)
        >>> [(variable.name, variable.shape) for variable in layer.trainable_weights]
        [('bias', (3,)), ('lora_kernel_a', (8, 2)), ('lora_kernel_b', (2, 3))]
        """
        numbers = _checked_numbers(rank, lora_alpha, "rank")
        self._check_constraint()
        if not self.built:
            raise ValueError(
                f"Cannot enable lora on a layer that isn't yet built. Layer '{self.name}' isn't built yet."
            )
        if self.lora_enabled:
            raise ValueError(f"lora is already enabled on layer '{self.name}'. This can only be done once per layer")
        undone_if_it_fails(contents_of([self]), self._adapt, *numbers, a_initializer, b_initializer)

    def merge_lora(self) -> None:
        """Replace the matrix by the sum ``W + lora_alpha / rank * a @ b``, and remove LoRA.

        Floats are trainable again; codes are quantized again. The layer gets new variables.
        """
        if self._lora is None:
            raise ValueError(f"layer '{self.name}' has no LoRA to merge: `enable_lora` was not called")
        undone_if_it_fails(contents_of([self]), self._merge, self._lora)

    def _merge(self, lora: LoRA) -> None:
        before, self.form = self.form, self.form.merged(lora.delta(), self.variable_dtype)
        made = {id(variable): self.form.variables[name] for name, variable in before.variables.items()}
        self._variables[:] = [made.get(id(variable), variable) for variable in self._variables]
        self._drop_lora()
        self._set_trainable(self.form.is_float)
        self._apply_policy()

    def _drop_lora(self) -> None:
        """Remove the thin matrices; the matrix does not change."""
        for name in (*(variable.name for variable in self._lora_variables), *(["_lora"] if self.lora_enabled else [])):
            delattr(self, name)

    def _adapt(self, rank: int, alpha: float, a_initializer: Any, b_initializer: Any) -> None:
        self._check_lora(self.form)
        name, shape = self._matrix_name, self.form.geometry.shape
        penalty = self._penalties.get(f"{name}_regularizer")
        a, b = (
            self.add_weight(size, initializer, "float32", name=f"lora_{name}_{part}", regularizer=penalty)
            for part, size, initializer in (
                ("a", (*shape[:-1], rank), a_initializer),
                ("b", (rank, shape[-1]), b_initializer),
            )
        )
        for variable in (a, b):
            setattr(self, variable.name, variable)
        self._requested_lora, self._lora = None, LoRA(rank, alpha, a, b)
        self._set_trainable(False)

    def _set_trainable(self, on: bool) -> None:
        """Set whether the matrix is trained; codes never are."""
        matrix = self.form.variables.get(self._matrix_name)
        if matrix is not None:
            matrix.trainable = on

    def _add_requested_lora(self) -> None:
        """Add the thin matrices that the constructor's argument `lora_rank` asks for."""
        if self._requested_lora is not None:
            self._adapt(*self._requested_lora, "he_uniform", "zeros")

    def _check_constraint(self) -> None:
        if f"{self._matrix_name}_constraint" in self._penalties:
            raise ValueError(
                f"Lora is incompatible with constraints: layer '{self.name}' has a `{self._matrix_name}_constraint`"
            )

    def _check_lora(self, form: Form) -> None:
        if form.name == "float8":
            raise NotImplementedError(f"layer '{self.name}' cannot have LoRA together with delayed float8 scaling")
        if form.is_trained:
            raise ValueError(f"layer '{self.name}' cannot have LoRA while its codes are trained: `convert_qat` first")

    # ---- the sum

    if not TYPE_CHECKING:  # type checkers use the declared attributes

        def __getattr__(self, name: str) -> Any:
            """Return the sum for the name of the matrix, as Keras does; the frozen matrix is in :attr:`form`."""
            lora = vars(self).get("_lora")
            if lora is None or name != self._matrix_name or name not in self.form.variables:
                return super().__getattr__(name)
            frozen = self.form.floats()
            wide = frozen if frozen.dtype.name == "float64" else ops.cast(frozen, F32)
            return ops.cast(ops.add(wide, lora.delta()), self.compute_dtype)

    @property
    def matrix(self) -> QuantizedArray | Array:
        """The matrix as in :attr:`MatrixLayer.matrix`; with LoRA the sum, in the form of the layer."""
        return self._merged_form().matrix

    def _merged_form(self) -> Form:
        """Return the form that files store: that of the sum, or the layer's own if LoRA adds zero."""
        if self._lora is None or not self._lora.b.numpy().any():
            return self.form
        return self.form.merged(self._lora.delta(), self.variable_dtype)

    def _set_matrix(self, *args: Any) -> None:
        super()._set_matrix(*args)
        for variable in self._cleared_by_loading():
            variable.assign(np.zeros(variable.shape, np.float32))

    def _new_form(self, *args: Any, **kwargs: Any) -> Form:
        form = super()._new_form(*args, **kwargs)
        if self.lora_enabled or self._requested_lora is not None:
            self._check_lora(form)
        return form

    def save_own_variables(self, store: Any) -> None:
        """Store the variables as every layer does; with LoRA the matrix is the sum. Codes must not be in training."""
        form = vars(self).get("form")
        if form is not None and form.is_trained:
            raise ValueError(f"the codes of layer '{self.name}' are trained: `convert_qat` before saving")
        super().save_own_variables(store)
        if self._lora is not None:
            merged = self._merged_form().variables
            places = {id(variable): str(number) for number, variable in enumerate(self._saved_variables())}
            for name, variable in self.form.variables.items():
                store[places[id(variable)]] = merged[name].numpy()

    def _saved_variables(self) -> list[AutoCastVariable]:
        own = self._lora_variables
        return [variable for variable in super()._saved_variables() if all(variable is not x for x in own)]

    @property
    def _lora_variables(self) -> tuple[AutoCastVariable, ...]:
        """The variables `a` and `b`; none without LoRA."""
        return () if self._lora is None else self._lora[2:]

    def _follows_policy(self, variable: AutoCastVariable) -> bool:
        return super()._follows_policy(variable) and all(variable is not x for x in self._lora_variables)

    def _cleared_by_loading(self) -> list[AutoCastVariable]:
        return [*self._lora_variables[1:]]

    def _extra_arrays(self) -> dict[str, Array]:
        """Return alpha and both thin matrices; if the sum differs from W, also W."""
        if self._lora is None:
            return {}
        found = {"lora_alpha": np.array(self._lora.alpha, np.float64)}
        found |= {part: variable.numpy() for part, variable in zip(_THIN_NAMES, self._lora_variables, strict=True)}
        frozen = self.form.variables if self._lora.b.numpy().any() else {}
        return found | {name: variable.numpy() for name, variable in frozen.items()}

    def _restore_extra_arrays(self, stored: Mapping[str, Array]) -> None:
        if not stored:
            return
        if not {"lora_alpha", *_THIN_NAMES} <= stored.keys() or not np.ndim(stored["lora_a"]):
            wanted = ", ".join(("lora_alpha", *_THIN_NAMES))
            raise ValueError(f"layer '{self.name}' needs {wanted}; there are {sorted(stored)}")
        if not self.lora_enabled:
            self.enable_lora(np.shape(stored["lora_a"])[-1], float(stored["lora_alpha"]), "zeros")
        variables = dict(zip(_THIN_NAMES, self._lora_variables, strict=True)) | self.form.variables
        arrays = {name: array for name, array in stored.items() if name != "lora_alpha"}
        shapes = {name: variable.shape for name, variable in variables.items() if name in arrays}
        received = {name: np.shape(array) for name, array in arrays.items()}
        if shapes != received:
            raise ValueError(f"layer '{self.name}' needs arrays of shapes {shapes} for LoRA; received {received}")
        values = [as_stored(x, variables[name].true_dtype, name, copy=True) for name, x in arrays.items()]
        assign_each([variables[name] for name in arrays], values)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, including those of LoRA if it is on."""
        rank, alpha = self._rank_and_alpha
        return super().get_config() | ({} if rank is None else {"lora_rank": rank, "lora_alpha": alpha})


def lora_of(layer: AdaptableLayer) -> LoRA | None:
    """Return the LoRA of a layer; None without it."""
    return layer._lora


def lora_variables(layer: AdaptableLayer) -> tuple[AutoCastVariable, ...]:
    """Return the variables `a` and `b` of a layer; none without LoRA."""
    return layer._lora_variables


def adapt(layer: AdaptableLayer, rank: int, alpha: float, a_initializer: Any, b_initializer: Any) -> None:
    """Add thin matrices to a built layer that has none. If that fails, the layer may be left incomplete."""
    layer._adapt(rank, alpha, a_initializer, b_initializer)


def drop_lora(layer: AdaptableLayer) -> None:
    """Remove the thin matrices of a layer, if any; its matrix does not change."""
    layer._drop_lora()


def _checked_numbers(rank: int | None, alpha: float | None, argument: str) -> tuple[int, float]:
    """Return rank and alpha, both checked; alpha defaults to the rank."""
    size = positive_integer(rank, argument)
    number = size if alpha is None else positive(alpha, "lora_alpha")
    return size, int(number) if isinstance(alpha, Integral) else number  # configurations keep an int
