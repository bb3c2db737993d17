"""Plans of products equal the golden ones of data/plans.csv, computed without running a kernel.

After a change of the plan, look at the differences: `python tests/test_plan.py && git diff tests/data/plans.csv`.
"""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest

from mp_core.arrays.products.plans import product_plan
from mp_core.core.cpu import cache_bytes, cpu_family, isas

FILE = Path(__file__).parent / "data" / "plans.csv"
INPUTS = ("shape", "dtype", "b_dtype", "layout", "isa", "order", "cpu", "caches", "threads")
OUTPUTS = ("way", "small", "amx", "mc", "nc", "kc", "tasks", "from_memory", "prefetch", "scratch")
ANOTHER_SET = [["bfloat16", "bfloat16", layout, "avx512_amx", "reproducible"] for layout in ("packed", "kn")]
ZEN4, INTEL, SMALL = ("zen4", "32K 1024K"), ("intel_amx", "48K 2048K"), ("zen4", "32K 256K")


def problems():
    """Return the inputs of every row."""
    shapes = ("1x64x64", "1x4096x4096", "8x1024x1024", "16x4096x4096", "128x768x3072", "1024x1024x1024")
    for shape, dtype, layout in itertools.product(shapes, ("float32", "bfloat16", "int8"), ("packed", "kn", "nk")):
        yield shape, dtype, dtype, layout, "avx512_bf16", "reproducible", *ZEN4, 1
    for dtype in ("float8_e4m3fn", "int8", "int4"):
        for shape in ("1x1024x1024", "64x768x768"):
            yield shape, "bfloat16", dtype, "packed", "avx512_bf16", "reproducible", *ZEN4, 1
    for threads, layout in itertools.product((2, 16), ("packed", "kn", "nk")):
        yield "128x768x3072", "bfloat16", "bfloat16", layout, "avx512_bf16", "reproducible", *ZEN4, threads
    for order, layout in itertools.product(("reproducible", "tiles"), ("packed", "kn")):
        for dtype in ("bfloat16", "int8"):
            yield "128x768x3072", dtype, dtype, layout, "avx512_amx", order, *INTEL, 1
    for b_dtype, shape in itertools.product(("float8_e4m3fn", "int4"), ("1x4096x4096", "16x4096x4096", "128x768x3072")):
        yield shape, "bfloat16", b_dtype, "packed", "avx512_amx", "tiles", *INTEL, 1
    for shape in ("6x768x768", "128x768x3072"):
        yield shape, "float32", "float32", "packed", "avx2", "reproducible", *SMALL, 1
        yield shape, "float32", "float32", "kn", "avx2", "reproducible", *SMALL, 1
    for dtype, b_dtype in (
        ("bfloat16", "bfloat16"),
        ("bfloat16", "int4"),
        ("int8", "int8"),
        ("uint8", "int8"),
        ("int8", "float4_e2m1fn"),
    ):
        for shape in ("15x768x768", "16x768x768", "31x1025x768", "128x768x3072"):
            yield shape, dtype, b_dtype, "packed", "avx2", "reproducible", *SMALL, 1
    for (dtype, b_dtype), shape in itertools.product(
        (("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "int8"), ("float16", "float16")),
        ("1x1024x1024", "1x64x64"),
    ):
        yield shape, dtype, b_dtype, "packed", "avx2", "reproducible", *SMALL, 1
    for layout, threads in itertools.product(("kn", "nk"), (1, 16)):
        yield "64x768x768", "bfloat16", "bfloat16", layout, "avx2", "reproducible", *SMALL, threads
    for layout, threads in itertools.product(("packed", "kn", "nk"), (1, 4)):
        yield "384x768x320", "float32", "float32", layout, "avx2", "reproducible", *SMALL, threads


def row_of(problem):
    """Return inputs and plan of a problem as text."""
    shape, dtype, b_dtype, layout, isa, order, cpu, caches, threads = problem
    sizes = [int(size.removesuffix("K")) << 10 for size in caches.split()]
    plan = product_plan(
        *map(int, shape.split("x")),
        dtype,
        b_dtype=b_dtype,
        layout=layout,
        isa=isa,
        reproducible=order == "reproducible",
        cpu=cpu,
        caches=sizes,
        threads=int(threads),
    )
    plan["prefetch"] = "next" if plan["prefetch_next"] else "within" if plan["prefetch_within"] else "none"
    plan["scratch"] = " ".join(f"{name}={size}" for name, size in plan["scratch"].items())
    return [str(value) for value in (*problem, *(plan[name] for name in OUTPUTS))]


def golden():
    with FILE.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert header == [*INPUTS, *OUTPUTS]
    return rows


def test_the_table_has_all_problems():
    assert [row[: len(INPUTS)] for row in golden()] == [[str(value) for value in problem] for problem in problems()]


@pytest.mark.parametrize(
    "row", golden() if __name__ != "__main__" else [], ids=lambda row: "-".join(row[: len(INPUTS)])
)
def test_a_plan_is_the_golden_one(row):
    if row[INPUTS.index("isa")] not in isas():
        pytest.skip("an instruction set of another architecture")
    if row[1:6] in ANOTHER_SET and "avx512" not in isas():
        pytest.skip("AMX is emulated, beside the pairs of avx2")
    assert row_of(row[: len(INPUTS)]) == row


@pytest.mark.parametrize("isa", [isa for isa in ("avx2", "neon") if isa in isas()])
def test_float32_is_copied_into_micro_panels_where_it_pays(isa):
    def copied(m, k, n, **settings):
        return product_plan(m, k, n, "float32", isa=isa, caches=(1 << 15, 1 << 19), **settings)["copied"]

    assert copied(97, 768, 768)
    assert not copied(96, 768, 768)
    assert not copied(97, 768, 16)  # one micro-panel
    assert not copied(97, 128, 768)  # a panel that fits L1
    assert not copied(97, 768, 64, threads=16)  # tasks of few rows
    assert copied(193, 768, 768, layout="kn")
    assert not copied(192, 768, 768, layout="kn")


@pytest.mark.parametrize("quantize", ["given", "found"])
@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("rows", [7, 8, 10, 16, 31, 32, 480])
def test_threads_that_quantize_get_equally_many_rows(rows, threads, quantize):
    settings = {"b_dtype": "int8", "isa": "scalar", "caches": (1 << 15, 1 << 20), "threads": threads}
    plan = product_plan(threads * rows, 384, 1536, "bfloat16", quantize=quantize, **settings)
    assert plan["tasks"] % threads == 0
    assert plan["tasks"] * plan["mc"] == threads * rows


def test_a_kept_plan_is_that_of_the_same_problem():
    """204 problems on the 64 places of a thread, of which many differ in one setting."""
    base = {"layout": "kn", "dtype": "bfloat16", "b_dtype": "int8", "group": 64, "isa": isas()[-1]}
    other = [{"layout": "nk"}, {"layout": "packed"}, {"a_layout": "km"}, {"b_dtype": "bfloat16"}, {"dtype": "float32"}]
    other += [{"matrices": 7}, {"threads": 2}, {"threads": 3}, {"isa": isas()[0]}, {"quantize": "found"}, {"group": 0}]
    other += [{"quantize": "given"}, {"zero_point": True}, {"row_zero": True}, {"reproducible": True}, {}]
    other += [{"reproducible": False}]
    shapes = list(itertools.product((1, 5, 200), (64, 1000), (64, 300)))
    problems = [(shape, base | settings) for shape in shapes for settings in other]
    made_anew = {"caches": cache_bytes()[:2], "cpu": cpu_family()}  # only plans for this machine are kept
    expected = [product_plan(*shape, **settings, **made_anew) for shape, settings in problems]
    for seed in range(3):
        for index in np.random.default_rng(seed).choice(len(problems), 3 * len(problems)):
            shape, settings = problems[index]
            for _ in range(2):  # the second time the plan is in its place
                assert product_plan(*shape, **settings) == expected[index]


def test_no_kernel_of_this_machine_is_needed():
    for isa in isas():
        assert product_plan(1, 64, 64, "float32", isa=isa)["isa"] == isa


def test_wrong_settings_are_named():
    with pytest.raises(TypeError, match="received lay_out"):
        product_plan(1, 1, 1, "float32", lay_out="kn")
    with pytest.raises(ValueError, match="`layout` must be one of packed, kn, nk; received 'mn'"):
        product_plan(1, 1, 1, "float32", layout="mn")
    with pytest.raises(ValueError, match="at least 1"):
        product_plan(0, 1, 1, "float32")


if __name__ == "__main__":
    with FILE.open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([[*INPUTS, *OUTPUTS], *map(row_of, problems())])
