"""The form of the policy ``ternary``: codes -1, 0 and 1, five in a byte."""

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, I8, Array, dtypes
from mp_core.arrays.quantization import QuantizedArray
from mp_core.layers.forms.form import Form, Variable
from mp_core.policies.quantizers import pack_int4

__all__ = ["Ternary"]

_POWERS = 3 ** np.arange(5)
_DIGITS = (np.arange(3**5)[:, np.newaxis] // _POWERS % 3 - 1).astype(I8)  # byte -> its five codes


class Ternary(Form):
    """Codes -1, 0 and 1, with a scale for each output, or each row of a table: the mean magnitude of its weights.

    For n outputs and k inputs, or a table of n rows and k columns, the variables are

    - ``codes``, uint8, shape (n, ceil(k / 5)): byte b holds ``sum_i (q[5 b + i] + 1) 3^i``; codes past the end are 0;
    - ``scale``, float32, shape (n, 1).

    A code is ``w / scale``, rounded and clipped. Packed products hold 4 bits for each code.

    References
    ----------
    S. Ma et al., "The Era of 1-bit LLMs: All Large Language Models are in 1.58 Bits", 2024: the formula of the codes.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> layer = Dense(1)
    >>> layer.build((None, 3))
    >>> layer.set_matrix(np.float32([[0.5, -0.1, -0.6]]))
    >>> layer.quantize("ternary")
    >>> layer.codes.numpy(), layer.scale.numpy()  # 2 + 3 * 1 + 9 * 0 + 27 * 1 + 81 * 1
    (array([[113]], dtype=uint8), array([[0.4]], dtype=float32))
    """

    name = "ternary"

    def variables_of(self) -> dict[str, Variable]:
        """Return the variables for codes and scales."""
        n, k = self.geometry.lines_shape
        codes = Variable((n, -(-k // 5)), "uint8", "zeros")
        return {"codes": codes, "scale": Variable((n, 1), "float32", "ones")}

    def encoded(self, floats: Array, dtype: str) -> dict[str, Array]:
        """Return codes and scales."""
        lines = ops.cast(self.geometry.transposed(self.geometry.arranged(floats)), F32)
        scale = ops.mean(ops.absolute(lines), axis=1, keepdims=True)
        scale = np.where(scale > 0, scale, F32.type(1))
        codes = np.zeros((len(lines), -(-lines.shape[1] // 5) * 5), np.intp)
        codes[:, : lines.shape[1]] = np.rint(lines / scale).clip(-1, 1)
        return {"codes": ((codes + 1).reshape(len(lines), -1, 5) @ _POWERS).astype(np.uint8), "scale": scale}

    @property
    def matrix(self) -> QuantizedArray:
        """The codes as int4, with their scales."""
        stored, shape = self.variables["codes"].numpy(), self.geometry.lines_shape
        if stored.size and stored.max() >= len(_DIGITS):
            raise ValueError(
                f"`codes` of layer '{self.geometry.owner}' must be less than {len(_DIGITS)}; received {stored.max()}"
            )
        codes = np.ascontiguousarray(_DIGITS[stored].reshape(shape[0], -1)[:, : shape[1]])
        pairs = pack_int4(codes, axis=-1)[0].view(np.uint8)
        return QuantizedArray(pairs, self.variables["scale"].numpy(), None, (0,), None, dtypes.STORED["int4"], shape)
