"""Shapes and types of operations and merging layers on symbolic arrays: those of Keras."""

import itertools
import os

import numpy as np
import pytest

import mp_core as mp
from mp_core import dtypes

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")

SHAPES = [
    (None, 3),
    (5, 3),
    (1, 3),
    (None, 1),
    (None, None, 3),
    (2, 5, 1),
    (2, 1, 3),
    (3,),
    (None,),
    (None, 4),
    (2, None, 1),
]
TYPES = ["float32", "float16", "bfloat16", "int32", "uint8", "bool"]
ONE = [(None, 3), (5, 4), (None, None, 6), (2, None, 1), (None, 4, 1, 6), (4,), (None,)]
PAIRS = list(itertools.product(SHAPES, SHAPES))
FEW = [((None, 3), (5, 3)), ((None, None, 3), (2, 5, 1)), ((None, 3), (None, 4)), ((2, 1, 3), (3,)), ((None,), (None,))]
QKV = [
    ((None, 5, 4, 8), (None, 7, 2, 8), (None, 7, 2, 8)),
    ((2, None, 4, 8), (2, None, 4, 8), (None, None, 4, 8)),
    ((None, 5, 8), (None, 5, 8), (None, 5, 8)),
    ((None, 5, 4, 8), (None, None, 4, None), (None, None, None, 8)),
]

TWO = [
    "add", "subtract", "multiply", "divide", "true_divide", "maximum", "minimum", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor", "floor_divide", "mod",
    "power",
]  # fmt: skip
ELEMENTS = [
    "exp", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "absolute", "abs", "negative", "relu",
    "relu6", "sigmoid", "silu", "tanh", "softplus", "ravel", "logical_not", "stop_gradient", "zeros_like",
    "ones_like", "convert_to_tensor", "expm1", "exp2", "log2", "log10", "sinh", "cosh", "erf", "erfc", "sin", "cos",
    "tan", "arctan", "arcsin", "arccos", "arcsinh", "arccosh", "arctanh", "selu", "softsign", "log_sigmoid",
]  # fmt: skip
REDUCTIONS = [
    "sum", "mean", "max", "min", "var", "std", "argmax", "argmin", "logsumexp",
]  # fmt: skip

# Name of a case -> what it makes of symbolic arrays by the operations of a library, and the shapes of these.
CASES = {
    **{name: (lambda o, x, y, name=name: getattr(o, name)(x, y), PAIRS if name == "add" else FEW) for name in TWO},
    **{name: (lambda o, x, name=name: getattr(o, name)(x), [(s,) for s in ONE]) for name in ELEMENTS},
    **{
        f"{name} {axis} {keepdims}": (
            lambda o, x, name=name, axis=axis, keepdims=keepdims: getattr(o, name)(x, axis=axis, keepdims=keepdims),
            [(s,) for s in ONE],
        )
        for name in REDUCTIONS
        for axis in ((None, 0, -1, 1, (0, 1)) if name == "sum" else (None, -1, 1))
        for keepdims in ((False, True) if name in ("sum", "argmax") else (False,))
    },
    **{f"softmax {axis}": (lambda o, x, axis=axis: o.softmax(x, axis=axis), [(s,) for s in ONE])
       for axis in (-1, 1, 2)},
    **{f"log_softmax {axis}": (lambda o, x, axis=axis: o.log_softmax(x, axis=axis), [(s,) for s in ONE])
       for axis in (-1, 1)},
    **{f"gelu {a}": (lambda o, x, a=a: o.gelu(x, approximate=a), [(s,) for s in ONE]) for a in (True, False)},
    "normalize": (lambda o, x: o.normalize(x, axis=-1), [(s,) for s in ONE]),
    "clip": (lambda o, x: o.clip(x, 0, 1), [(s,) for s in ONE]),
    "cast": (lambda o, x: o.cast(x, "float16"), [(s,) for s in ONE]),
    "a number": (lambda o, x: o.where(x > 1, x * 2 + 1, 2 - x), [(s,) for s in ONE]),
    "a fraction": (lambda o, x: 0.5 + x / 2, [(s,) for s in ONE]),
    "where": (lambda o, x, y: o.where(x, y, 0), PAIRS),
    "where of three": (lambda o, x, y: o.where(x, y, x), FEW),
    "matmul": (lambda o, x, y: o.matmul(x, y), [
        *PAIRS, ((None, 3), (3, 5)), ((None, None, 3), (3, 5)), ((None, 2, 4), (None, 4, None)), ((None, 4), (4,)),
        ((4,), (None, 4, 7)), ((3, 4), (5, 6)), ((6, None, 2, 3), (None, 3, 5)), ((None,), (None,))]),
    "operator @": (lambda o, x, y: x @ y, [((None, 3), (3, 5)), ((None, 2, 4), (None, 4, None)), ((3, 4), (5, 6))]),
    **{f"reshape {s}": (lambda o, x, s=s: o.reshape(x, s), [(s,) for s in ONE])
       for s in [(-1,), (-1, 2), (2, -1, 3), (5, 4), (4, -1, -1)]},
    **{f"transpose {a}": (lambda o, x, a=a: o.transpose(x, a), [(s,) for s in ONE])
       for a in [None, (1, 0), (0, 2, 1), (2, 0, 1), (0, 0)]},
    **{f"swapaxes {a}": (lambda o, x, a=a: o.swapaxes(x, *a), [(s,) for s in ONE]) for a in [(0, 1), (-1, 1), (1, 2)]},
    **{f"moveaxis {a}": (lambda o, x, a=a: o.moveaxis(x, *a), [(s,) for s in ONE])
       for a in [(0, 1), (-1, 0), (1, 2), ((0, 1), (1, 0)), ((0, -1), (-1, 0))]},
    **{f"expand_dims {a}": (lambda o, x, a=a: o.expand_dims(x, a), [(s,) for s in ONE]) for a in [0, 1, -1, 2, (0, 2)]},
    **{f"squeeze {a}": (lambda o, x, a=a: o.squeeze(x, a), [(s,) for s in ONE]) for a in [None, -1, 2, (2,), 0]},
    **{f"flip {a}": (lambda o, x, a=a: o.flip(x, a), [(s,) for s in ONE]) for a in [None, 0, -1, (0, 1)]},
    **{f"broadcast_to {s}": (lambda o, x, s=s: o.broadcast_to(x, s), [(s,) for s in ONE])
       for s in [(5, 4), (2, 7, 6), (5, 3), (4,)]},
    **{f"split {n} {a}": (lambda o, x, n=n, a=a: o.split(x, n, axis=a), [(s,) for s in ONE])
       for n in [1, 2, 3, (1, 2), [2]] for a in [0, 1, -1]},
    **{f"concatenate {a}": (lambda o, x, y, a=a: o.concatenate([x, y], axis=a), PAIRS if a == 0 else FEW)
       for a in (0, 1, -1)},
    **{f"stack {a}": (lambda o, x, y, a=a: o.stack([x, y], axis=a), PAIRS if a == 0 else FEW) for a in (0, 1, -1)},
    **{f"index {i}": (lambda o, x, i=i: x[i], [(s,) for s in ONE])
       for i in [0, -1, 3, (slice(None, None, -2), ...), (slice(None), 0), (..., 1),
                 (None, ...), (slice(1, 3), None), (0, 1, 2, 3, 4), (slice(None), slice(-2, None)), (..., ...)]},
    **{f"einsum {e}": (lambda o, x, y, e=e: o.einsum(e, x, y), [
        ((None, 3), (3, 5)), ((None, 3), (None, 5)), ((None, 5, 3), (None, 3)), ((2, None, 3), (3, 4)),
        ((4, 3), (4, 5)), ((None, None, 3), (None, 3, 6))])
       for e in ["ab,bc->ac", "ab,bc", "...b,bc->...c", "abc,ac->ab", "abc,acd->abd", "ab,ac->abc", "ab,bc->cab",
                 "...ab,...b->...a"]},
    "dot_product_attention": (lambda o, q, k, v: o.dot_product_attention(q, k, v), QKV),
    **{f"pad {w}": (lambda o, x, w=w: o.pad(x, w), [(s,) for s in ONE]) for w in (1, ((1, 2),), ((0, 1), (2, 3)))},
    "a bare slice": (lambda o, x: x[1:], [((5, 4),), ((4,),)]),
    "causal attention": (lambda o, q, k, v: o.dot_product_attention(q, k, v, scale=0.5, is_causal=True), QKV),
}  # fmt: skip

OWN_TYPES = {
    **dict.fromkeys(("sum",), "integers are summed in 64 bits"),
    **dict.fromkeys(
        (
            "relu",
            "relu6",
            "sigmoid",
            "silu",
            "softmax",
            "log_softmax",
            "softplus",
            "gelu",
            "selu",
            "softsign",
            "log_sigmoid",
        ),
        "of integers in float32",
    ),
    "rsqrt": "of integers in float32; Keras' backends refuse them",
    **dict.fromkeys(("dot_product_attention", "causal"), "integers beside 16 bits are float32"),
    **dict.fromkeys(("matmul", "operator", "einsum"), "products of integers are those of 8 bits, in int32"),
    "a": "Keras has no uint8 beside 2",
}
"""First word of a case -> why results of integers have another type here than in Keras: see docs/different.md."""


def told(library, make, shapes, types):
    """Shapes and types of what a library returns for symbolic arrays; the error if it raises."""
    inputs = [library.Input(batch_shape=shape, dtype=dtype) for shape, dtype in zip(shapes, types, strict=True)]
    return outcome(make, library.ops, inputs)


def outcome(make, ops, inputs):
    try:
        found = make(ops, *inputs)
    except (ValueError, TypeError, IndexError, ZeroDivisionError, RuntimeError) as error:
        return error
    parts = found if isinstance(found, list | tuple) else [found]
    return [(tuple(x.shape), getattr(x.dtype, "name", str(x.dtype).rpartition(".")[2])) for x in parts]


def sized(shapes):
    """The shapes with each unknown length in turn one of some."""
    count = sum(shape.count(None) for shape in shapes)
    for chosen in itertools.product((2, 3, 4, 5) if count < 3 else (3,), repeat=count):
        waiting = iter(chosen)
        yield [tuple(next(waiting) if n is None else n for n in shape) for shape in shapes]


def agree(symbolic, actual):
    """Whether what is known of symbolic arrays is true of arrays."""
    return len(symbolic) == len(actual) and all(
        one[1] == other[1] and len(one[0]) == len(other[0])
        and all(n in (None, length) for n, length in zip(one[0], other[0], strict=True))
        for one, other in zip(symbolic, actual, strict=True)
    )  # fmt: skip


def computed_by_keras(make, shapes, types):
    """What Keras returns for arrays of such shapes and types, for all lengths with which it does not raise."""
    for known in sized(shapes):
        arrays = [keras.ops.ones(shape, dtype) for shape, dtype in zip(known, types, strict=True)]
        found = outcome(make, keras.ops, arrays)
        if not isinstance(found, Exception):
            yield found


def differences(make, all_shapes, types):
    """The shapes for which symbolic arrays are neither what Keras' are nor what Keras computes."""
    for shapes in all_shapes:
        mine, theirs = told(mp, make, shapes, types), told(keras, make, shapes, types)
        if mine == theirs or (isinstance(mine, Exception) and isinstance(theirs, Exception)):
            continue
        computed = list(itertools.islice(computed_by_keras(make, shapes, types), 2))
        if computed if isinstance(mine, Exception) else not computed or not all(agree(mine, x) for x in computed):
            yield shapes, types, mine, theirs, computed[:1]


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")
@pytest.mark.parametrize("case", CASES)
def test_shapes_are_those_of_keras(case):
    make, shapes = CASES[case]
    assert not list(differences(make, shapes, ["float32"] * len(shapes[0])))


UNTYPED = ("index", "reshape", "transpose", "swapaxes", "moveaxis", "split", "squeeze", "expand_dims", "flip")
TYPED = [case for case in CASES if not case.startswith(UNTYPED)]


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")
@pytest.mark.parametrize("case", TYPED)
def test_types_are_those_of_keras(case):
    make, shapes = CASES[case]
    fitting = [each for each in shapes if not isinstance(told(mp, make, each, ["float32"] * len(each)), Exception)][:1]
    allowed = [name for name in TYPES if case.split()[0] not in OWN_TYPES or "float" in name]
    some = itertools.product(allowed, repeat=min(2, len(shapes[0])))
    for types in (
        some if case in ("add", "divide", "where", "mod", "concatenate 0") else zip(allowed, allowed[::-1], strict=True)
    ):
        types = types[: len(shapes[0])]
        given = [*types, *types[-1:] * (len(shapes[0]) - len(types))]
        assert not list(differences(make, fitting, given))


BY_NUMPY = ("a number", "a fraction", "operator @")
"""Cases of operators, which NumPy computes of arrays."""
OPEN = ("squeeze", "split")
"""Cases that, as in Keras, take for granted that an unknown length is not 1, or long enough."""


@pytest.mark.parametrize("case", [case for case in CASES if case not in BY_NUMPY and not case.startswith(OPEN)])
def test_arrays_have_the_shapes_and_types_of_symbolic_ones(case):
    make, all_shapes = CASES[case]
    for shapes, name in itertools.product(all_shapes, ["float32", "int8"]):
        types = [name] * len(shapes)
        symbolic = told(mp, make, shapes, types)
        for known in itertools.islice(sized(shapes), 3):
            found = outcome(make, mp.ops, [np.ones(shape, dtypes.parse(name)) for shape in known])
            if not isinstance(found, Exception):
                assert not isinstance(symbolic, Exception), (known, types, symbolic, found)
                assert agree(symbolic, found), (known, types, symbolic, found)


MERGED = [
    ("Add", {}), ("Subtract", {}), ("Multiply", {}), ("Average", {}), ("Maximum", {}), ("Minimum", {}),
    ("Concatenate", {}), ("Concatenate", {"axis": 1}), ("Dot", {"axes": 1}), ("Dot", {"axes": -1}),
    ("Dot", {"axes": (2, 1)}),
]  # fmt: skip
MERGED_SHAPES = [*SHAPES, (None, 5, 3), (None, None, None)]


@pytest.mark.parametrize(("name", "options"), MERGED)
def test_merging_layers_have_the_shapes_of_keras(name, options):
    def make(library):
        return lambda _, *inputs: getattr(library.layers, name)(**options)(list(inputs))

    for shapes in itertools.product(MERGED_SHAPES, repeat=2):
        if name == "Dot" and (any(len(shape) < 2 for shape in shapes) or shapes[0][0] != shapes[1][0]):
            continue  # Keras does not look at batches, and finds no error
        mine, theirs = told(mp, make(mp), shapes, 2 * ["float32"]), told(keras, make(keras), shapes, 2 * ["float32"])
        assert mine == theirs or (isinstance(mine, Exception) and isinstance(theirs, Exception)), (shapes, mine, theirs)
    for types in itertools.product(["float32", "bfloat16", "int32"], repeat=2):
        shapes = [(None, 4, 3), (None, 3, 4)] if options.get("axes") == (2, 1) else [(None, 3, 3)] * 2
        mine, theirs = (told(library, make(library), shapes, types) for library in (mp, keras))
        assert mine == theirs or name == "Concatenate"  # of integers, whose type Keras keeps without saying so


def test_what_is_between_layers_broadcasts_in_models_in_models_and_after_loading(tmp_path):
    x, y = mp.Input((None, 3), name="x"), mp.Input((5, 3), name="y")
    inner = mp.Model([x, y], mp.ops.add(x, y) * mp.layers.Add()([x, y]))
    assert inner.outputs[0].shape == (None, 5, 3)
    a, b = mp.Input((None, 3), name="a"), mp.Input((5, 3), name="b")
    outer = mp.Model([a, b], mp.layers.Dense(2)(inner([a, b])))
    assert outer.outputs[0].shape == (None, 5, 2)
    arrays = [np.ones((2, 1, 3), np.float32), np.ones((2, 5, 3), np.float32)]
    outer.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(mp.load_model(tmp_path / "model.keras")(arrays), outer(arrays))
    fresh = mp.Functional.from_config(outer.get_config())
    fresh.build()
    fresh.set_weights(outer.get_weights())
    np.testing.assert_array_equal(fresh(arrays), outer(arrays))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras
def test_models_of_known_lengths_take_symbolic_arrays_of_unknown_ones():
    inner = [library.Model(i := library.Input((4, 3)), library.layers.Dense(2)(i)) for library in (mp, keras)]
    inner[0].set_weights([np.asarray(w) for w in inner[1].get_weights()])
    mine, theirs = (
        library.Model(x := library.Input((None, 3)), model(x[:, :4]))
        for library, model in zip((mp, keras), inner, strict=True)
    )
    array = np.random.default_rng(0).normal(size=(2, 9, 3)).astype(np.float32)
    np.testing.assert_allclose(mine(array), np.asarray(theirs(array).detach()), atol=1e-6)
    np.testing.assert_array_equal(mine.predict(array, verbose=0), mine(array))
    with pytest.raises(ValueError, match=r"must have shape \(None, 4, 3\)"):
        mine(array[:, :3])
