"""Quantization to 4, 8 and 16 bits: ``x ~ scale * (q - zero_point)``.

| file | contents |
|---|---|
| `array.py` | :class:`QuantizedArray` |
| `calls.pyx` | the functions `quantize` and `dequantize` |
| `general.py` | their general path, for arguments that kernels cannot take |
| `microscaling.py` | the formats MXFP4, MXFP8, MXINT8 and NVFP4: how their scales are computed |
| `codes.py` | the types of codes, and how elements and scales correspond |
| `recipe.pyx` | compiled: everything that depends only on shape, type of codes and axes |
"""

from mp_core.arrays.quantization.array import QuantizedArray, check_unchanged, for_each_element, unpacked_codes
from mp_core.arrays.quantization.calls import dequantize, quantize

__all__ = ["QuantizedArray", "check_unchanged", "dequantize", "for_each_element", "quantize", "unpacked_codes"]
