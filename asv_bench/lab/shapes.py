"""The shapes, types and kinds of quantization that `peers.py` and `builds.py` measure. Needs no package."""

from dataclasses import dataclass

PRODUCT_SHAPES = (  # m x k x n, or batch x m x k x n
    *("1x1024x1024", "1x4096x4096", "8x1024x1024", "16x4096x4096"),  # most of the time is reading b
    *("64x768x768", "128x768x3072", "128x3072x768", "256x256x256", "512x512x512", "1024x1024x1024", "2048x2048x2048"),
    *("12x128x32x128", "12x128x128x32"),  # 12 heads of attention
    *("1x64x64", "4x16x16", "16x64x64"),
)
PRODUCT_DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn")
PACKED, ARRAYS = "packed", ("kn", "nk")  # b: packed, an array (k, n), or the transpose of an array (n, k)
COPIES = 48  # pairs of operands, used in turn like the layers of a model: b comes from memory

DYNAMIC_SHAPES = (
    *("1x1024x1024", "1x4096x4096", "8x1024x1024", "16x4096x4096"),
    *("64x768x768", "128x768x3072", "512x512x512", "1024x1024x1024"),
)

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
CAST_PAIRS = tuple(pair for name in NARROW for pair in (f"float32:{name}", f"{name}:float32"))
CAST_SIZES = (64, 1 << 12, 1 << 20, 1 << 25)

QUANTIZE_SHAPES = ("64x64", "1024x1024", "4096x8192")
GROUP = 64  # elements that share a scale


@dataclass(frozen=True)
class Kind:
    """The elements that share a scale, and the type of the codes; `back`: from codes to numbers."""

    axis: int | None = None
    group: bool = False
    dtype: str = "int8"
    given: bool = False
    back: bool = False

    @property
    def label(self) -> str:
        shared = "tensor" if self.axis is None else f"axis={self.axis}"
        dtype = "" if self.dtype == "int8" else self.dtype.removeprefix("float8_")
        return ", ".join(filter(None, (shared, "group" * self.group, dtype, "given" * self.given, "back" * self.back)))

    @property
    def settings(self) -> dict:
        """Arguments of mp.quantize; uint8 codes have zero points."""
        group_size = GROUP if self.group else None
        return {"axis": self.axis, "group_size": group_size, "dtype": self.dtype, "symmetric": self.dtype != "uint8"}

    def twice(self, size: int) -> bool:
        """Whether x is read from memory twice, because its range must be known before its first code."""
        return not (self.given or self.back or self.group or self.axis == 0) and size > 1 << 16


SHARED = ((None, False), (1, False), (0, False), (1, True), (0, True))
KINDS = (
    *(Kind(axis, group, given=given) for axis, group in SHARED for given in (False, True)),
    *(Kind(axis, group, "uint8") for axis, group in SHARED),
    *(Kind(axis, group, "int4") for axis, group in ((0, False), (1, True), (0, True))),
    *(Kind(axis, dtype="float8_e4m3fn") for axis in (None, 1, 0)),
    *(Kind(axis, group, back=True) for axis, group in SHARED),
    *(Kind(0, group, "int4", back=True) for group in (False, True)),
    Kind(dtype="float8_e4m3fn", back=True),
)
LABELS = {kind.label: kind for kind in KINDS}
