"""einsum, compared with NumPy's in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import assert_same_bits, gamma, values

import mp_core as mp

EQUATIONS = [  # equation, shapes: products as NumPy takes them
    ("ij,jk->ik", (5, 7), (7, 4)),
    ("ij,jk", (5, 7), (7, 4)),
    ("ji,jk->ki", (7, 5), (7, 4)),
    ("bqhd,bkhd->bhqk", (2, 5, 3, 8), (2, 6, 3, 8)),
    ("bhqk,bkhd->bqhd", (2, 3, 5, 6), (2, 6, 3, 8)),
    ("bthd,hde->bte", (2, 5, 3, 4), (3, 4, 6)),
    ("bthd,dhe->bte", (2, 5, 3, 4), (4, 3, 6)),
    ("abk,kn->abn", (2, 5, 3), (3, 4)),
    ("abk,akn->abn", (2, 5, 3), (2, 3, 4)),
    ("...ij,...jk->...ik", (2, 1, 5, 7), (3, 7, 4)),
    ("...ij,jk", (2, 3, 5, 7), (7, 4)),
    ("i...j,jk->ik...", (2, 5, 3), (3, 4)),
    ("...,...->...", (2, 3), (3,)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("bij,bjk->bik", (4, 2, 3), (1, 3, 5)),
    ("ij,ij->ij", (2, 3), (1, 3)),
    ("i,i->", (9,), (9,)),
    ("i,j->ij", (3,), (4,)),
    ("i , j -> ji", (3,), (4,)),
    ("k,kn->n", (3,), (3, 4)),
    ("mk,k->m", (3, 4), (4,)),
    (",ij->ji", (), (3, 4)),
    (",", (), ()),
    ("ba,c", (2, 3), (4,)),
    ("ij,jk->i", (5, 7), (7, 4)),
    ("abc,cd->ad", (2, 3, 4), (4, 5)),
    ("i,j->", (5,), (6,)),
    ("ij,jk->ik", (5, 0), (0, 4)),
    ("bij,bjk->kbi", (0, 2, 3), (0, 3, 4)),
]


def assert_close(equation, a, b, y, roundings):
    """Within gamma of the roundings of a term, as docs/numerics.md proves for the product alone."""
    wide = a.astype(np.float64), b.astype(np.float64)
    exact = np.einsum(equation, *wide)
    assert y.shape == exact.shape
    assert np.all(np.abs(y - exact) <= gamma(roundings) * np.einsum(equation, *map(np.abs, wide)) + 1e-35)


@pytest.mark.parametrize(("equation", "a", "b"), EQUATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float64"])
def test_einsum(equation, a, b, dtype, rng):
    a, b = values(rng, a, dtype, 1), values(rng, b, dtype, 1)
    y = mp.einsum(equation, a, b, out_dtype="float32")
    assert y.dtype == np.float32
    assert_close(equation, a, b, y, a.size + b.size + 4)
    narrow = mp.einsum(equation, a, b)
    assert narrow.dtype == a.dtype
    if dtype != "float64":
        assert_same_bits(narrow, mp.cast(y, dtype))


@pytest.mark.parametrize(("equation", "a", "b"), EQUATIONS)
@pytest.mark.parametrize("types", [("int8", "int8"), ("uint8", "int8")])
def test_integers_are_exact(equation, a, b, types, rng):
    a, b = (rng.integers(np.iinfo(t).min, 128, shape).astype(t) for t, shape in zip(types, (a, b), strict=True))
    if equation in ("ij,jk->i", "abc,cd->ad", "i,j->") or a.shape == (2, 1):
        with pytest.raises(TypeError, match="sum that axis first"):
            mp.einsum(equation, a, b)
        return
    y = mp.einsum(equation, a, b)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, np.einsum(equation, a.astype(np.int64), b.astype(np.int64)))


@st.composite
def contractions(draw):
    """(equation, arrays, roundings): labels of every kind in any order, lengths of 0 and 1 among them, any strides."""
    kinds = draw(st.lists(st.sampled_from(("ab>", "a>", "b>", "ab", "a", "b")), max_size=6))
    labels = dict(zip("zyxcba", kinds, strict=False))
    lengths = {label: draw(st.integers(0, 4)) for label in labels}
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    terms, arrays = [], []
    for operand in "ab":
        term = draw(st.permutations([label for label, kind in labels.items() if operand in kind]))
        shape = [1 if "ab" in labels[x] and draw(st.integers(0, 5)) == 0 else lengths[x] for x in term]
        memory = draw(st.permutations(range(len(shape))))
        array = rng.standard_normal([shape[i] for i in memory]).astype(np.float32)
        array = np.repeat(array, 2, axis=0)[::-2] if array.ndim and draw(st.booleans()) else array
        arrays.append(array.transpose(np.argsort(memory)) if array.ndim else array)
        terms.append("".join(term))
    out = "".join(draw(st.permutations([label for label, kind in labels.items() if ">" in kind])))
    summed = sum(np.prod([max(n, 1) for x, n in lengths.items() if labels[x] == kind]) for kind in ("ab", "a", "b"))
    return f"{terms[0]},{terms[1]}->{out}", arrays, int(summed) + 4


@settings(deadline=None)
@given(contractions())
def test_any_equation(case):
    equation, (a, b), roundings = case
    y = mp.einsum(equation, a, b)
    assert_close(equation, a, b, y, roundings)
    assert_same_bits(mp.einsum(equation, np.ascontiguousarray(a).reshape(a.shape), b.copy("F")), y)
    out = np.empty(y.shape, np.float32)
    assert mp.einsum(equation, a, b, out=out) is out
    assert_same_bits(out, y)


def test_the_bits_are_those_of_matmul_with_labels_in_the_order_of_b(isa, rng):
    a, b = rng.standard_normal((3, 4, 50)).astype(np.float32), rng.standard_normal((50, 4, 6)).astype(np.float32)
    expected = mp.matmul(a.transpose(0, 2, 1).reshape(3, 200), b.reshape(200, 6))
    assert_same_bits(mp.einsum("ijk,kjn->in", a, b), expected)
    assert_same_bits(
        mp.einsum("kjn,ijk->ni", b, a), mp.matmul(b.transpose(2, 1, 0).reshape(6, 200), a.reshape(3, 200).T)
    )


def test_attention_copies_no_operand(rng, monkeypatch):
    q, k = (rng.standard_normal((2, 16, 3, 8)).astype("bfloat16") for _ in range(2))
    seen = []
    original = mp.matmul

    def matmul(a, b, **options):
        seen.extend((a, b))
        return original(a, b, **options)

    monkeypatch.setattr("mp_core.ops.contraction.matmul", matmul)
    scores = mp.einsum("bqhd,bkhd->bhqk", q, k)
    assert np.shares_memory(seen[0], q) and np.shares_memory(seen[1], k) and scores.flags.c_contiguous


def test_packed_and_quantized_operands(rng):
    a, b = rng.standard_normal((2, 5, 8)).astype(np.float32), rng.standard_normal((8, 6)).astype(np.float32)
    stack = rng.standard_normal((2, 8, 6)).astype(np.float32)
    assert_same_bits(mp.einsum("abk,kn->abn", a, mp.pack(b)), mp.matmul(a, b))
    assert_same_bits(mp.einsum("...mk,...kn->...mn", a, mp.pack(stack)), mp.matmul(a, stack))
    q, w = mp.quantize(a, axis=(0, 1)), mp.quantize(b, axis=1)
    for right in (w, mp.pack(w)):
        assert_same_bits(
            mp.einsum("abk,kn->abn", q, right, out_dtype="bfloat16"), mp.matmul(q, w, out_dtype="bfloat16")
        )


def test_out_may_overlap_and_have_any_layout(rng):
    a, b = rng.standard_normal((4, 4)).astype(np.float32), rng.standard_normal((4, 4)).astype(np.float32)
    for equation in ("ij,jk->ik", "ij,jk->ki", "ji,jk->ik"):
        expected = mp.einsum(equation, a, b)
        shared = a.copy()
        assert mp.einsum(equation, shared, b, out=shared) is shared
        assert_same_bits(shared, expected)
        for out in (np.empty((4, 8), np.float32)[:, ::2], np.empty((4, 4), ">f4"), np.empty((4, 4), np.float32).T):
            mp.einsum(equation, a, b, out=out)
            np.testing.assert_array_equal(out, expected)


F = np.ones((2, 3), np.float32)


def test_a_lone_label_is_summed_in_the_type_of_the_product():
    small = np.array([[1.0] + [2.0**-25] * 2**20], np.float32)
    for ones in (np.ones(1), np.ones(1, np.float32)):
        expected = 1 + 2.0**-5 if ones.dtype == np.float64 else mp.matmul(small, np.ones(small.size, np.float32))
        assert mp.einsum("i,ij->i", ones, small) == expected
        assert mp.einsum("ij,i->i", small, ones) == expected


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mp.einsum(None, F, F), TypeError, "`equation` must be a string; received NoneType"),
        (lambda: mp.einsum("ij->ji", F, F), ValueError, "with two operands; received 'ij->ji'"),
        (lambda: mp.einsum("ij,jk,kl->il", F, F), ValueError, "with two operands"),
        (lambda: mp.einsum("i1,1k->ik", F, F), ValueError, "must be like"),
        (lambda: mp.einsum(".ij,jk->ik", F, F), ValueError, "must be like"),
        (lambda: mp.einsum("...i...,ik->k", F, F), ValueError, "must be like"),
        (lambda: mp.einsum("ij,jk->ik->", F, F), ValueError, "must be like"),
        (lambda: mp.einsum("ii,ij->j", F, F), ValueError, "must not repeat a label within an operand"),
        (lambda: mp.einsum("ij,kj->ii", F, F), ValueError, "must have labels of the operands, once"),
        (lambda: mp.einsum("ij,kj->iz", F, F), ValueError, "must have labels of the operands, once"),
        (lambda: mp.einsum("...j,...j->", F, F), ValueError, "must have the ellipsis of its operands"),
        (lambda: mp.einsum("ijk,jl->il", F, F), ValueError, "has 3 labels for its first operand of 2 axes"),
        (lambda: mp.einsum("ij,j->i", F, F), ValueError, "has 1 labels for its second operand of 2 axes"),
        (
            lambda: mp.einsum("ij,jk->ik", F, F),
            ValueError,
            "label 'j' must be as long in `a` as in `b`, or 1; .*3 and 2",
        ),
        (lambda: mp.einsum("ij,ik->jk", F, mp.pack(F)), ValueError, "packed or quantized `b` needs an equation like"),
        (lambda: mp.einsum("ij,jk->ki", mp.quantize(F), F.T), ValueError, "packed or quantized `a` needs"),
        (lambda: mp.einsum("ij,jk->ik", F[:, :1], mp.pack(F)), ValueError, "no axis that is broadcast"),
        (lambda: mp.einsum("ij,kj->ik", F, F, out=np.empty((2, 3), "f4")), ValueError, "`out` must have shape"),
        (lambda: mp.einsum("ij,kj->ki", F, F, out=np.empty((2, 2))), TypeError, "`out` must have dtype float32"),
        (lambda: mp.einsum("ij,kj->ik", F, F, out=[]), TypeError, "`out` must be a numpy.ndarray"),
        (lambda: mp.einsum("ij,kj->ik", F, "x"), TypeError, "`b` must be an array"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
