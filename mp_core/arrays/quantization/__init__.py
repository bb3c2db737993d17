"""Quantization to 4, 8 and 16 bits: ``x ~ scale * (q - zero_point)``, written here and nowhere else.

`array.py` holds the class of quantized arrays and `calls.pyx` the two functions. `general.py` does what they need for
arguments that kernels cannot take as they are. `recipe.pyx` holds what follows from shape, type of codes and axis.
"""

from mp_core.arrays.quantization.array import QuantizedArray, check_unchanged, for_each_element, unpacked_codes
from mp_core.arrays.quantization.calls import dequantize, quantize

__all__ = ["QuantizedArray", "check_unchanged", "dequantize", "for_each_element", "quantize", "unpacked_codes"]
