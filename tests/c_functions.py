"""The functions of mp_core.h, called as in a C program: through the table of the capsule, with ctypes."""

import ctypes
import re
from pathlib import Path

import numpy as np

import mp_core as mp
import mp_core.core.capi

OK, INVALID = 0, 1
TYPES = {
    "float32": 0, "float16": 1, "bfloat16": 2, "float8_e4m3fn": 3, "float8_e5m2": 4, "float64": 5,
    "int8": 6, "uint8": 7, "int32": 8, "int4": 9, "uint4": 10, "float4_e2m1fn": 11,
}  # fmt: skip
_FIELDS = {"size_t": ctypes.c_size_t, "ptrdiff_t": ctypes.c_ssize_t, "int": ctypes.c_int}
_HEADER = re.sub(r"/\*.*?\*/", "", Path(mp.get_include(), "mp_core.h").read_text(), flags=re.DOTALL)


def _struct(name):
    """Return the struct of that name as a ctypes type, from the header."""
    body = re.search(rf"typedef struct {name} \{{(.*?)\}}", _HEADER, re.DOTALL)[1]
    fields = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        kind, names = re.match(r"(?:const )?(\w+) (.*)", declaration, re.DOTALL).groups()
        for field in names.split(","):
            is_pointer = field.strip().startswith("*")
            fields.append((field.strip(" *"), ctypes.c_void_p if is_pointer else _FIELDS[kind]))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Product, Quantization, Rows = map(_struct, ("mp_core_product", "mp_core_quantization", "mp_core_rows"))


def _table():
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    at = ctypes.pythonapi.PyCapsule_GetPointer(mp_core.core.capi._C_API, b"mp_core.core._C_API")
    table = re.search(r"typedef struct mp_core_table \{(.*?)\} mp_core_table", _HEADER, re.DOTALL)[1]
    names = re.findall(r"\(\*(\w+)\)\(", table)
    pointers = ctypes.cast(at + 2 * ctypes.sizeof(ctypes.c_int), ctypes.POINTER(ctypes.c_void_p))
    return {name: pointers[i] for i, name in enumerate(names)}


_SIZE, _INT, _AT, _FLOAT = ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_float
_SIGNATURES = {
    "cast": (_INT, _SIZE, _INT, _AT, _INT, _AT, _INT, _INT),
    "packed_bytes": (_SIZE, _INT, _SIZE, _SIZE),
    "pack": (_INT, _INT, _SIZE, _SIZE, _AT, _SIZE, _SIZE, _AT, _INT),
    "product_scratch": (_SIZE, _AT, _INT),
    "multiply": (_INT, _AT, _AT, _INT),
    "quantize": (_INT, _AT, _INT),
    "dequantize": (_INT, _AT, _INT),
    "softmax": (_INT, _AT, _FLOAT, _AT, _SIZE, _INT),
    "layer_norm": (_INT, _AT, _AT, _AT, _AT, _FLOAT, _INT),
    "rms_norm": (_INT, _AT, _AT, _FLOAT, _INT),
    "activate": (_INT, _AT, _INT, _INT),
}
FUNCTIONS = {name: ctypes.CFUNCTYPE(*_SIGNATURES[name])(at) for name, at in _table().items() if name in _SIGNATURES}


def described(kind, **fields):
    """Return a struct with its size and these fields; an ndarray is its address."""
    given = {name: value.ctypes.data if isinstance(value, np.ndarray) else value for name, value in fields.items()}
    return kind(size=ctypes.sizeof(kind), **given)


def call(name, *arguments):
    """Call a function: a struct is passed by its address, an ndarray as its own, and None as NULL."""
    passed = [
        ctypes.addressof(x) if isinstance(x, ctypes.Structure) else x.ctypes.data if isinstance(x, np.ndarray) else x
        for x in arguments
    ]
    return FUNCTIONS[name](*passed)
