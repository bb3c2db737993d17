"""Look up rows of a table."""

from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arrays import Array, asarray, dtypes
from mp_core.layers import initializers
from mp_core.layers.lora import AdaptableLayer
from mp_core.layers.shapes import Shape
from mp_core.ops.lookup import check_indices
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.arguments import boolean, positive_integer

__all__ = ["Embedding"]


class Embedding(AdaptableLayer):
    """Rows of a table at integer indices. Only the rows that are read are cast to the compute dtype.

    Under ``QuantizedDTypePolicy("int8", ...)`` the table is int8 with one scale per row; under ``"int4/<block size>"``
    it is int4 with a scale and a zero point for each row and block of columns.

    Parameters
    ----------
    input_dim, output_dim : int
        Rows and columns of the table.
    embeddings_initializer : str, dict or callable
    weights : array-like, optional
        The table, shape (input_dim, output_dim), or a list that contains only the table.
    mask_zero : bool
        Whether index 0 is padding. If so, :meth:`compute_mask` returns ``indices != 0``, and a
        :class:`~mp_core.layers.Sequential` passes that mask to the next layers.
    **kwargs
        ``lora_rank`` and ``lora_alpha`` (see :meth:`enable_lora`), and the arguments of :class:`Layer`.

    Attributes
    ----------
    embeddings : AutoCastVariable, shape (input_dim, output_dim)
        For int4, a read-only int8 array of its codes. The stored variable has two codes to a byte.
    embeddings_scale : AutoCastVariable, shape (input_dim,)
        Only for int8, and int4 without blocks: values are ``embeddings / embeddings_scale``.
    embeddings_zero, g_idx : AutoCastVariable, shape (input_dim, blocks) and (output_dim,)
        Only for int4 in blocks.

    Examples
    --------
    >>> Embedding(3, 2, weights=[[0, 1], [2, 3], [4, 5]], dtype="mixed_float16")(np.array([2, 0]))
    array([[4., 5.],
           [0., 1.]], dtype=float16)
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    _matrix_name = "embeddings"
    embeddings: AutoCastVariable
    embeddings_scale: AutoCastVariable
    _is_table = True
    _repr_arguments = ("input_dim", "output_dim")
    _options = ("input_dim", "output_dim", "embeddings_initializer", "mask_zero")
    _lacking = MappingProxyType({"input_length": None, "sparse": False})

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        weights: ArrayLike | None = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.input_dim = positive_integer(input_dim, "input_dim")
        self.output_dim = positive_integer(output_dim, "output_dim")
        self.mask_zero = self.supports_masking = boolean(mask_zero, "mask_zero")
        self.embeddings_initializer = initializers.checked(embeddings_initializer)
        if weights is not None:
            self.build()
            table = asarray(weights, "weights")
            self.form.assign(table[0] if table.shape == (1, input_dim, output_dim) else table, self.variable_dtype)

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        """Create the table. Its shape does not depend on `input_shape`."""
        shape = (self.input_dim, self.output_dim)
        self._add_matrix(self.embeddings_initializer, shape, *shape, (self.input_dim,))
        self._add_requested_lora()

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Array | None:
        """Return ``inputs != 0``; None without `mask_zero`."""
        if not self.mask_zero:
            return None
        return ops.not_equal(inputs, 0)

    def call(self, inputs: Array) -> Array:
        """Return the rows, shape (..., output_dim) for indices of shape (...).

        Indices that are not from 0 to below `input_dim` raise IndexError.
        """
        if not (inputs.dtype.kind in "iub" or dtypes.is_float(inputs.dtype)):
            raise TypeError(f"The indices of layer '{self.name}' must be numbers; received dtype {inputs.dtype}")
        with np.errstate(invalid="ignore"):  # NaN and too large numbers become invalid indices, which are checked next
            indices = inputs if inputs.dtype.kind in "iu" else ops.cast(inputs, np.int32)
        check_indices(indices, self.input_dim, f"The indices of layer '{self.name}'")
        rows, lora = self.form.take(indices, self._compute), self._lora
        return rows if lora is None else lora.added(rows, ops.take_rows(lora.a.numpy(), indices, self._compute))

    def _shape_after(self, shape: Shape) -> Shape | None:
        return (*shape, self.output_dim)

    def _read_bytes(self) -> int:
        return sum(variable.nbytes for variable in self.own_variables())
