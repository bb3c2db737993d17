"""The cases of the vectors: operation, arguments and inputs."""

import zlib

import numpy as np

from . import elements
from .formats import FORMATS, INTEGERS, codes, magnitudes, rounded

FLOATS = ("float32", "float16", "bfloat16")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
ACTIVATIONS = ("relu", "relu6", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "elu", "softplus", "exponential")
SPECIAL = (
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1.0,
    -1.0,
    2.0**-126,
    -(2.0**-149),
    88.7,
    -87.4,
    -103.5,
    1e-30,
    -9.3,
    11.1,
)


def drawn(kind, *shape, low=-3, high=2):
    """Describe random numbers with exponents from `low` to `high`; `case` chooses their key."""
    return {"dtype": kind, "shape": list(shape), "exponents": [low, high]}


def given(kind, values):
    """Describe an array by its bits."""
    values = np.asarray(values)
    x = values if kind in (*INTEGERS, "float64") else rounded(values, kind)
    digits = {"float64": 16, "float32": 8}.get(kind) or (INTEGERS[kind][0] // 4 if kind in INTEGERS else None)
    digits = digits or (FORMATS[kind].exponent_bits + FORMATS[kind].mantissa_bits + FORMATS[kind].signed) // 4
    text = "".join(f"{code:0{digits}x}" for code in codes(x, kind).ravel().tolist())
    return {"dtype": kind, "shape": list(values.shape), "bits": text}


def case(operation, label, inputs, /, **arguments):
    """Return a case; the keys of random inputs are the CRC-32 of its name and 0, 1, ..."""
    seed = zlib.crc32(f"{operation} {label}".encode())
    inputs = {
        key: entry if "bits" in entry else entry | {"key": [seed, i]} for i, (key, entry) in enumerate(inputs.items())
    }
    return {"name": f"{operation} {label}", "operation": operation, "arguments": arguments, "inputs": inputs}


def casts():
    """Yield casts to and from every type."""
    for kind, f in FORMATS.items():
        values = magnitudes(kind)
        middles = (values[1:] + values[:-1])[:: max(1, len(values) // 8)] / 2
        near = np.concatenate([middles, np.nextafter(middles, 1e300), np.nextafter(middles, 0), [1e-310, 1e39, np.inf]])
        near = np.concatenate([near, -near, [] if f.nan is None else [np.nan]])
        low = int(np.log2(values[1])) - 3
        for saturate in (False, True):
            mode = " saturate" * saturate
            yield case("cast", f"float64 to {kind}{mode}", {"x": given("float64", near)}, dtype=kind, saturate=saturate)
            x = {"x": drawn("float32", 500, low=max(low, -125), high=min(int(np.log2(values[-1])) + 2, 127))}
            yield case("cast", f"float32 to {kind}{mode}", x, dtype=kind, saturate=saturate)
        yield case("cast", f"int64 to {kind}", {"x": drawn("int64", 100)}, dtype=kind, saturate=False)
        yield case(
            "cast", f"{kind} to float32", {"x": drawn(kind, 300, low=max(low + 4, -120), high=3)}, dtype="float32"
        )
    wide = given(
        "float64", [1e39, -1e39, np.inf, 3.4028235677973366e38, 3.4028235677973365e38, 7e-46, 2e-45, 1 + 2.0**-24]
    )
    for saturate in (False, True):
        name = f"float64 to float32{' saturate' * saturate}"
        yield case("cast", name, {"x": wide}, dtype="float32", saturate=saturate)
    for kind in ("int64", "uint64"):
        yield case("cast", f"{kind} to float32", {"x": drawn(kind, 200)}, dtype="float32")
    for kind in ("int4", "uint4", "int8", "uint8", "int32"):
        x = given("float32", [*SPECIAL, 7.9, 8.0, -8.9, 15.9, 16.0, 127.5, 128.0, -129.0, 255.9, 1e20])
        yield case("cast", f"float32 to {kind} saturate", {"x": x}, dtype=kind, saturate=True)


def products():
    """Yield products of every arithmetic, with K blocks, scale groups and epilogues."""
    pairs = [(a, b) for a in FLOATS for b in FLOATS] + [(x, x) for x in FLOAT8] + [("bfloat16", x) for x in FLOAT8]
    pairs += [("float32", "int8"), ("bfloat16", "int8"), ("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")]
    for a, b in pairs:
        for k in (0, 37, 2051)[a != b :]:
            high = 2 if k < 100 else 0
            x = {"a": drawn(a, 2, k, high=high), "b": drawn(b, k, 3, high=high)}
            yield case("matmul", f"{a} {b} {k}", x, out_dtype="float32" if a in (*FLOATS, *FLOAT8) else "int32")
    for a in FLOATS:
        tiny = {
            "a": drawn(a, 3, 33, low=-20, high=-8),
            "b": drawn(a, 33, 5, low=-110 if a != "float16" else -16, high=-1),
        }
        yield case("matmul", f"{a} tiny", tiny, out_dtype="float32")
        for name in ACTIVATIONS:
            x = {"a": drawn(a, 3, 9), "b": drawn(a, 9, 17), "bias": drawn("float32", 17), "residual": drawn(a, 3, 17)}
            yield case("matmul", f"{a} {name}", x, activation=name, out_dtype=a)
        small = {"a": drawn(a, 3, 9, low=-14, high=-10), "b": drawn(a, 9, 17, low=-14, high=-10)}
        small |= {"bias": drawn("float32", 17, low=-128, high=-120)}
        yield case("matmul", f"{a} small bias", small, activation="gelu", out_dtype="float32")
        for kind, group in (("int8", None), ("int4", None), ("int4", 32), ("float8_e4m3fn", 64), ("int8", 40)):
            scale = given("float32", 0.01 * (1 + np.arange(3 * (-(-150 // group) if group else 1)).reshape(-1, 3)))
            x = {"a": drawn(a, 3, 150), "b": drawn(kind, 150, 3), "b_scale": scale, "bias": drawn("float32", 3)}
            yield case("matmul", f"{a} {kind} groups {group}", x, activation="silu", out_dtype=a, group=group)


def tile_cases():
    """Yield products in pairs in tile order, which only CPUs with Intel AMX have."""
    for b, k, group in (("bfloat16", 33, None), ("bfloat16", 2500, None), ("int8", 150, 64), ("int8", 150, 40)):
        x = {"a": drawn("bfloat16", 2, k), "b": drawn(b, k, 3)}
        x |= {"b_scale": given("float32", 0.01 * (1 + np.arange(3 * -(-k // group)).reshape(-1, 3)))} if group else {}
        yield case("matmul", f"tiles {b} {k} {group}", x, out_dtype="float32", **{"group": group} if group else {})
    yield case(
        "matmul", "tiles float8", {"a": drawn(FLOAT8[1], 2, 70), "b": drawn(FLOAT8[1], 70, 3)}, out_dtype="float32"
    )


def rows_cases():
    """Yield sums along rows and what is built on them."""
    for kind in FLOATS:
        for n in (1, 37, 9000):
            x = {"x": drawn(kind, 2, n)}
            yield case("sum", f"{kind} {n}", x, axis=[1])
            yield case("softmax", f"{kind} {n}", x, scale=1.7)
            yield case("log_softmax", f"{kind} {n}", x)
            yield case("normalize", f"{kind} {n}", x)
            yield case("cumsum", f"{kind} {n}", {"x": drawn(kind, 2, n, high=-1)})
            norm = {"x": drawn(kind, 2, n), "gamma": drawn(kind, n), "beta": drawn(kind, n)}
            yield case("layer_norm", f"{kind} {n}", norm)
            yield case("rms_norm", f"{kind} {n}", {"x": drawn(kind, 2, n), "gamma": drawn(kind, n)})
        yield case("mean", f"{kind} axes", {"x": drawn(kind, 3, 4, 5, 6)}, axis=[2, 0])
        x = {"x": drawn(kind, 3, 40), "mask": given("uint8", np.arange(120).reshape(3, 40) % 7 < 5)}
        yield case("softmax", f"{kind} mask", x, scale=0.3)
        x = {"x": drawn(kind, 2, 40), "gamma": drawn(kind, 40), "beta": drawn(kind, 40), "residual": drawn(kind, 2, 40)}
        yield case("layer_norm", f"{kind} residual", x, epsilon=1e-5)
    special = [[1, 2, np.nan, 3], [np.inf, 1, 2, 3], [-np.inf] * 4, [0, -np.inf, 1, 2], [5, 5, 5, 5], [-0.0, 0, 1, 2]]
    yield case("softmax", "special", {"x": given("float32", special)})
    for low, epsilon in ((63, 1e-3), (-90, 1e-35), (-140, 0.0)):
        x = {"x": drawn("float32", 2, 37, low=low, high=low + 3), "gamma": drawn("float32", 37)}
        yield case("rms_norm", f"2^{low}", x, epsilon=epsilon)
        yield case("layer_norm", f"2^{low}", x | {"beta": drawn("float32", 37)}, epsilon=epsilon)
        yield case("normalize", f"2^{low}", {"x": x["x"]}, epsilon=max(epsilon, 1e-35))


def functions():
    """Yield functions of every type."""
    for name in (*ACTIVATIONS, "log", "log1p", "sqrt"):
        yield case("function", f"{name} float32", {"x": drawn("float32", 4096, low=-12, high=6)}, name=name)
        yield case("function", f"{name} special", {"x": given("float32", SPECIAL)}, name=name)
        for kind in ("float16", "bfloat16"):
            yield case("function", f"{name} {kind}", {"x": drawn(kind, 500, low=-6, high=2)}, name=name)
    for p in (0.5, 3.0, -1.7, 101.0):
        yield case("power", f"{p}", {"x": drawn("float32", 1000, low=-6, high=4)}, exponent=p)


def element_cases():
    """Yield operations of two arrays."""
    for kind in FLOATS:
        for name in elements.OPERATIONS:
            x = [[0, 0, -0.0, np.nan, 1, np.inf, 3, 1], [-0.0, 0, 0, 1, np.nan, np.inf, 7, -3]]
            inputs = {"x": given(kind, x[0]), "y": given(kind, x[1])}
            yield case("elementwise", f"{name} {kind} special", inputs, name=name)
            yield case("elementwise", f"{name} {kind}", {"x": drawn(kind, 300), "y": drawn(kind, 300)}, name=name)
        yield case("gate", kind, {"x": drawn(kind, 300), "y": drawn(kind, 300)}, activation="silu")
        yield case("rotary", kind, {"x": drawn(kind, 2, 5, 3, 8), "angles": drawn("float32", 5, 8)})


def quantization_cases():
    """Yield every row of the tables of quantization, and products of codes."""
    special = [
        [0] * 6,
        [np.nan, np.inf, -np.inf, 1, -2, 3],
        [3.4e38, -3.4e38, 1, 0, 0, 0],
        [1e-45, -7e-45, 1e-44, 0, 0, 0],
    ]
    for kind in ("int8", "uint8", "int4", "uint4", *FLOAT8):
        for symmetric in (True, False)[: 1 if kind in FLOAT8 else 2]:
            name = f"{kind} {'symmetric' if symmetric else 'asymmetric'}"
            for x, label in ((drawn("float32", 6, 20), ""), (drawn("float32", 20, 6, low=-148, high=-138), " tiny")):
                yield case("quantize", name + label, {"x": x}, dtype=kind, symmetric=symmetric)
            yield case("quantize", f"{name} special", {"x": given("float32", special)}, dtype=kind, symmetric=symmetric)
    for kind in ("int8", "uint8", "int16", "uint16", "uint4"):
        yield case("quantize", f"{kind} given", {"x": drawn("float32", 50)}, dtype=kind, scale=0.037, zero_point=3)
    for kind in FLOATS:
        for group in (None, 32):
            groups = 5 if group else 1
            x = {"a": drawn(kind, 3, 150), "b": drawn("int4", 150, 3), "bias": drawn("float32", 3)}
            x |= {"b_scale": given("float32", 0.02 * (1 + np.arange(3 * groups).reshape(-1, 3)))}
            x |= {"b_zero": given("int32", np.arange(3 * groups).reshape(-1, 3) % 8)}
            yield case("matmul", f"int4 zeros {kind} {group}", x, out_dtype=kind, group=group, packed=True)
            yield case(
                "dynamic_matmul", f"int4 zeros {kind} {group}", x, out_dtype=kind, group=group, activation="gelu"
            )
        x = {"a": drawn(kind, 3, 150), "b": drawn("int8", 150, 3), "b_scale": given("float32", [[0.1, 0.2, 0.3]])}
        yield case("dynamic_matmul", f"int8 {kind}", x, out_dtype=kind)
    for a, b in (("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")):
        x = {"a": drawn(a, 3, 40), "a_zero": given("int32", 4), "b": drawn(b, 40, 3)}
        x |= {"b_scale": given("float32", [[0.01, 0.02, 0.003]]), "b_zero": given("int32", [[3, 0, 7]])}
        yield case("qlinear_matmul", f"{a} {b}", x | {"a_scale": given("float32", 0.07)}, out_scale=9.3, out_zero=5)
        x |= {"a_scale": given("float32", [[0.07], [0.3], [1]]), "a_zero": given("int32", [[4], [0], [1]])}
        yield case("quantized_matmul", f"{a} {b}", x)


def attention_cases():
    """Yield attention in bands, with bias, mask, softcap and dropout, and pooling."""
    for kind in FLOATS:
        x = {name: drawn(kind, 1, 150, 1, 4) for name in "qkv"}
        variants = {"plain": {}, "causal": {"is_causal": True}, "reach": {"reach": 9}, "softcap": {"softcap": 3.0}}
        for name, arguments in variants.items():
            yield case("attention", f"{kind} {name}", x, **arguments)
        extra = {
            "mask": given("uint8", np.arange(63).reshape(1, 1, 7, 9) % 5 < 3),
            "bias": drawn("float32", 1, 1, 7, 9),
        }
        short = {"q": drawn(kind, 1, 7, 1, 8), "k": drawn(kind, 1, 9, 1, 8), "v": drawn(kind, 1, 9, 1, 5)}
        yield case("attention", f"{kind} bias mask", short | extra, scale=0.4)
        ragged = {name: drawn(kind, 150, h, 4) for name, h in (("q", 2), ("k", 1), ("v", 1))}
        ragged |= {"offsets": given("int32", [0, 3, 140, 150]), "key": given("uint32", [7, 3])}
        for name, arguments in {"plain": {}, "causal": {"is_causal": True}, "dropout": {"dropout": 0.3}}.items():
            yield case("ragged_attention", f"{kind} {name}", ragged, **arguments)
        for name in ("mean", "mean_sqrt_len_tokens", "weightedmean", "max", "cls", "lasttoken"):
            x = {"x": drawn(kind, 2500, 3), "offsets": given("int32", [0, 7, 2500])}
            yield case("ragged_pool", f"{kind} {name}", x, pooling=name)
    zeros = {"x": given("float32", [[-0.0, -1, 0], [-1, -0.0, -0.0]]), "offsets": given("int32", [0, 1, 2])}
    yield case("ragged_pool", "zeros", zeros, pooling="max")


def random_cases():
    """Yield random numbers."""
    key = {"key": given("uint32", [7, 3])}
    yield case("uniform", "7 3", key, shape=[100])
    yield case("normal", "7 3", key, shape=[500])
    for kind in FLOATS:
        yield case("dropout", kind, {"x": drawn(kind, 7, 9)} | key, rate=0.3)


def gradient_cases():
    """Yield gradients, training steps and recurrent steps."""
    for kind in ("float32", "bfloat16"):

        def of(forward, d, wanted=1, kind=kind, arguments=None, **inputs):
            label = " ".join(map(str, (arguments or {}).values()))
            inputs = {"d": drawn(kind, *d)} | inputs
            return case(
                "gradient", f"{forward} {label} {kind}", inputs, forward=forward, wanted=wanted, **arguments or {}
            )

        x = drawn(kind, 3, 70)
        yield of("softmax", (3, 70), x=x, arguments={"scale": 0.5})
        yield of("log_softmax", (3, 70), x=x)
        yield of("layer_norm", (3, 70), 3, x=x, gamma=drawn(kind, 70), beta=drawn(kind, 70))
        yield of("rms_norm", (3, 70), 2, x=x, gamma=drawn(kind, 70))
        large = {"x": drawn(kind, 2, 70, low=70, high=75), "gamma": drawn(kind, 70, low=70, high=75)}
        yield of("rms_norm", (2, 70), 2, **large, arguments={"epsilon": 1e-5})
        yield of("layer_norm", (2, 70), 3, **large, beta=drawn(kind, 70), arguments={"epsilon": 1e-5})
        yield of("matmul", (2100, 3), 2, a=drawn(kind, 2100, 5), b=drawn(kind, 5, 3))
        yield of("take_rows", (1100, 3), table=drawn(kind, 20, 3), indices=given("uint8", np.arange(1100) ** 2 % 20))
        for name in ACTIVATIONS:
            yield of("function", (3, 70), x=x, arguments={"name": name})
        for name in elements.OPERATIONS:
            yield of("elementwise", (3, 70), 2, x=x, y=drawn(kind, 3, 70), arguments={"name": name})
        qkv = {name: drawn(kind, 1, 140, 1, 4) for name in "qkv"}
        for arguments in ({}, {"reach": 9}, {"softcap": 2.0}):
            yield of("attention", (1, 140, 1, 4), 3, **qkv, arguments=arguments)
    for kind in FLOATS:
        policy = kind if kind == "float32" else f"mixed_{kind}"
        x = {"x": drawn("float32", 1100, 13), "classes": given("uint8", np.arange(1100) ** 2 % 4)}
        x |= {"w1": drawn("float32", 13, 16), "b1": drawn("float32", 16)}
        x |= {"w2": drawn("float32", 16, 4), "b2": drawn("float32", 4)}
        yield case("train", kind, x, policy=policy, steps=3)
        state = {"h": drawn(kind, 3, 6), "c": drawn(kind, 3, 6)}
        for layer, gates, bias, names in (("LSTM", 4, (24,), "hc"), ("GRU", 3, (2, 18), "h")):
            x = {"x": drawn(kind, 3, 5), "w": drawn("float32", 5, 6 * gates), "u": drawn("float32", 6, 6 * gates)}
            x |= {"b": drawn("float32", *bias)} | {name: state[name] for name in names}
            yield case("recurrent", f"{layer} {kind}", x, layer=layer, policy=policy)


SECTIONS = {"casts": casts, "products": products, "rows": rows_cases, "functions": functions, "elements": element_cases}
SECTIONS |= {"quantization": quantization_cases, "attention": attention_cases, "random": random_cases}
SECTIONS |= {"gradients": gradient_cases, "tiles": tile_cases}
CASES = {section: list(make()) for section, make in SECTIONS.items()}
