"""Keras' quantizers, with Keras' conventions.

They differ from those of :mod:`mp_core.quantization`:

- Scale: ``q = x * scale`` here, ``q = x / scale`` there.
- ``axis``: the axes that share a scale here, the axes that have separate scales there.
- ``block_size`` here is ``group_size`` there.
"""

from typing import TYPE_CHECKING

from mp_core.ops.fake_quant import fake_quant_with_min_max_vars
from mp_core.ops.float8 import compute_float8_amax_history, compute_float8_scale, quantize_and_dequantize
from mp_core.policies.quantizers.abs_max import abs_max_quantize, abs_max_quantize_grouped_with_zero_point
from mp_core.policies.quantizers.configurations import (
    AWQConfig,
    Float8QuantizationConfig,
    GPTQConfig,
    Int4QuantizationConfig,
    Int8QuantizationConfig,
    QuantizationConfig,
)
from mp_core.policies.quantizers.int4 import pack_int4, unpack_int4
from mp_core.policies.quantizers.quantizer import AbsMaxQuantizer, deserialize, get, serialize
from mp_core.utilities.absent import refusing

__all__ = [
    "AWQConfig", "AbsMaxQuantizer", "Float8QuantizationConfig", "GPTQConfig", "Int4QuantizationConfig",
    "Int8QuantizationConfig", "QuantizationConfig", "abs_max_quantize",
    "abs_max_quantize_grouped_with_zero_point", "compute_float8_amax_history", "compute_float8_scale", "deserialize",
    "fake_quant_with_min_max_vars", "get", "pack_int4",
    "quantize_and_dequantize", "serialize", "unpack_int4",
]  # fmt: skip


if not TYPE_CHECKING:  # type checkers must report unknown names
    __getattr__, __dir__ = refusing("quantizers", __all__)
