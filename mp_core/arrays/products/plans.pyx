"""The plan of a product as a dict, for inspection and tests. No kernel runs."""

from libc.string cimport memset

from mp_core.core.cpu cimport kernels_of, reproducible_here
from mp_core.core.header cimport MP_I4, MP_PANEL, MP_U8, mp_active, mp_element_bytes
from mp_core.core.library cimport (
    MP_DECODED, MP_DECODED_TILES, MP_IN_PLACE, MP_IN_TURN, MP_OCTS, MP_PANELS, MP_TILES, MP_TRANSPOSED,
    MP_WIDER, mp_by_tiles, mp_copies_panels, mp_few_rows, mp_find_plan, mp_layout, mp_machine, mp_machine_of,
    mp_make_plan, mp_multiplied_bytes, mp_plan, mp_problem, mp_this_machine,
)

from mp_core.core.cpu import CPU_FAMILIES, cache_bytes, cpu_family
from mp_core.arrays.formats import PANELS

ARITHMETICS = ("wide", "pairs", "quads")

# Name -> default of everything that a plan depends on besides the shape and the type of A.
#   b_dtype      the type of B; None: the type of A
#   layout       the layout of B: "packed" (a PackedMatrix), "kn" (row-major) or "nk" (transposed)
#   a_layout     the layout of A: "mk" (row-major) or "km" (transposed)
#   matrices     the number of products in the batch
#   threads      the number of threads that run the tasks
#   isa          an instruction set of this build, also if this machine lacks it; None: the active one
#   cpu          the CPU family whose tuned constants are used, a key of cpu.CPU_FAMILIES; None: this CPU's
#   caches       (bytes of L1d, bytes of L2); None: this machine's
#   quantize     quantize rows of a float A to int8, with scales that are "found" or "given"; None: do not quantize
#   zero_point, row_zero   whether B (its columns, or for int4 its scale groups) and the rows of A have zero points
#   group        elements along K in a scale group of B; 0: no scale groups
#   reproducible whether sums of pairs use the reproducible order; None: the current setting
SETTINGS = {
    "b_dtype": None, "layout": "packed", "a_layout": "mk", "matrices": 1, "threads": 1, "isa": None, "cpu": None,
    "caches": None, "quantize": None, "zero_point": False, "row_zero": False, "group": 0, "reproducible": None,
}


# Way of a plan -> its name in the dict.
WAYS = {
    MP_PANELS: "packed", MP_TILES: "packed", MP_DECODED: "decoded", MP_DECODED_TILES: "decoded", MP_IN_TURN: "in turn",
    MP_WIDER: "made wider", MP_OCTS: "in octs", MP_IN_PLACE: "in place", MP_TRANSPOSED: "transposed",
}


def way_of(way, packed):
    """Return the name of a plan's way; "packed on the fly" if B is an array whose panels the product packs."""
    name = WAYS[way]
    return "packed on the fly" if name in ("packed", "decoded") and not packed else name


cdef mp_layout layout_of(fmt, Py_ssize_t rows, Py_ssize_t cols, bint transposed):
    """Return the layout of a contiguous matrix, or of the transpose of one."""
    cdef mp_layout layout
    cdef Py_ssize_t size = mp_element_bytes[<int>fmt]
    layout.format, layout.size = fmt, <int>size
    layout.rs, layout.cs = (size, rows * size) if transposed else (cols * size, size)
    return layout


def _checked(shape, dtype, settings):
    """Return all settings, with defaults; raise TypeError or ValueError if a name or value is unknown."""
    unknown = settings.keys() - SETTINGS.keys()
    if unknown:
        raise TypeError(f"a plan depends on {', '.join(SETTINGS)}; received {', '.join(sorted(unknown))}")
    s = SETTINGS | settings
    s["b_dtype"] = s["b_dtype"] or dtype
    choices = {"b_dtype": tuple(PANELS), "layout": ("packed", "kn", "nk"), "a_layout": ("mk", "km"),
               "quantize": (None, "found", "given")}
    for name, value in [("dtype", dtype), *s.items()]:
        allowed = (*PANELS, "uint8") if name == "dtype" else choices.get(name)
        if allowed is not None and value not in allowed:
            raise ValueError(f"`{name}` must be one of {', '.join(map(str, allowed))}; received {value!r}")
    if min(*shape, s["matrices"], s["threads"]) < 1:
        raise ValueError(f"the shape, `matrices` and `threads` must be at least 1; received {shape}, {s['matrices']}, "
                         f"{s['threads']}")
    return s


def product_plan(Py_ssize_t m, Py_ssize_t k, Py_ssize_t n, dtype, **settings):
    """Return the plan of a product (m, k) @ (k, n) as a dict, without running it.

    Parameters
    ----------
    m, k, n : int
        The shape; at least 1.
    dtype : str
        The type of A: a float type, int8 or uint8.
    **settings
        Other properties of the product: see :data:`SETTINGS`.

    Examples
    --------
    >>> plan = product_plan(16, 4096, 4096, "bfloat16", isa="scalar", caches=(1 << 15, 1 << 20))
    >>> plan["way"], plan["mc"], plan["tasks"]
    ('packed', 16, 1)
    """
    cdef mp_problem q
    cdef mp_plan p
    cdef mp_machine another
    s = _checked((m, k, n), dtype, settings)
    memset(&q, 0, sizeof(q))
    q.machine = mp_this_machine()
    if s["cpu"] is not None or s["caches"] is not None:
        l1d, l2 = (s["caches"] or cache_bytes())[:2]
        another = mp_machine_of(CPU_FAMILIES[s["cpu"] or cpu_family()], l1d, l2)
        q.machine = &another
    q.kernels = mp_active() if s["isa"] is None else kernels_of(s["isa"])
    q.matrices, q.m, q.k, q.n, q.group = s["matrices"], m, k, n, s["group"]
    q.threads = s["threads"] if <double>q.matrices * m * n * k >= q.machine.tuning.thread_work else 1
    q.a = layout_of((PANELS | {"uint8": MP_U8})[dtype], m, k, s["a_layout"] == "km")
    q.b = layout_of(PANELS[s["b_dtype"]], k, n, s["layout"] == "nk")
    q.packed, q.row_zero = s["layout"] == "packed", s["row_zero"]
    q.zero_point, q.code_zero = s["zero_point"] and q.b.format != MP_I4, s["zero_point"] and q.b.format == MP_I4
    q.quantized_here, q.finds_scales = s["quantize"] is not None, s["quantize"] == "found"
    q.reproducible = reproducible_here() if s["reproducible"] is None else s["reproducible"]
    if q.machine == mp_this_machine():
        mp_find_plan(&q, &p)  # uses the thread's cache of plans, like a real product
    else:
        mp_make_plan(&q, &p)
    return {
        "isa": q.kernels.isa.decode(), "threads": q.threads, "arithmetic": ARITHMETICS[p.arithmetic],
        "way": way_of(p.way, q.packed), "small": p.small, "amx": bool(mp_by_tiles(&p)),
        "copied": bool(mp_copies_panels(&p)), "a_in_place": p.reads_a_in_place,
        "k_block": min(p.k_block, k), "tasks": q.matrices * p.row_tasks * p.panel_tasks,
        "mc": p.mc, "task_panels": p.task_panels, "nc": min(p.nc_panels * MP_PANEL, n), "kc": p.kc,
        "kc_bytes": mp_multiplied_bytes(&p, p.kc) * min(n, <Py_ssize_t>MP_PANEL),
        "tail": p.tail,
        "from_memory": p.from_memory, "prefetch_within": p.prefetch_within, "prefetch_next": p.prefetch_next,
        "scratch": {name: size for name, size in (<object>p.scratch).items() if size},
        "limits": {
            "in_place": q.machine.tuning.in_place_mc[p.arithmetic],
            "transposed": q.machine.tuning.transposed_mc[p.arithmetic], "small_mc": q.machine.tuning.small_mc,
            "prefetch": q.machine.tuning.prefetch_mc[0], "few_rows": mp_few_rows(&q, p.arithmetic),
            "few_rows_recoded": q.kernels.products[p.arithmetic].recoded.few_rows[q.b.format],
            "l1d": q.machine.l1d, "l2": q.machine.l2,
        },
    }
