"""The plan of a product as a dict, for people and tests: computed without running a kernel."""

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

# What a plan depends on beside the shape and the type of A: name -> its default.
#   b_dtype      the type of B; None: that of A
#   layout       how B lies: "packed" (a PackedMatrix), "kn" (row-major) or "nk" (transposed)
#   a_layout     how A lies: "mk" (row-major) or "km" (transposed)
#   matrices     products of the batch
#   threads      threads that run the tasks
#   isa          an instruction set of this build, whether or not this machine has it; None: the one in use
#   cpu          the family of CPUs whose tuned constants are used, a key of cpu.CPU_FAMILIES; None: this one's
#   caches       bytes of L1d and L2; None: this machine's
#   quantize     rows of a float A become int8, by scales that are "found" or "given"; None: they do not
#   zero_point, row_zero   whether B (its columns or, of int4, scale groups) and rows of A have zero points
#   group        elements of K in a scale group of B; 0: there are no scale groups
#   reproducible the order of sums of pairs; None: the one that is set
SETTINGS = {
    "b_dtype": None, "layout": "packed", "a_layout": "mk", "matrices": 1, "threads": 1, "isa": None, "cpu": None,
    "caches": None, "quantize": None, "zero_point": False, "row_zero": False, "group": 0, "reproducible": None,
}


# By the way of a plan: what is said of it. Panels that are copied or multiplied as they are may be packed on the fly.
WAYS = {
    MP_PANELS: "packed", MP_TILES: "packed", MP_DECODED: "decoded", MP_DECODED_TILES: "decoded", MP_IN_TURN: "in turn",
    MP_WIDER: "made wider", MP_OCTS: "in octs", MP_IN_PLACE: "in place", MP_TRANSPOSED: "transposed",
}


def way_of(way, packed):
    """Return the name of a way of a plan: "packed on the fly" if an array is packed and its panels are not recoded."""
    name = WAYS[way]
    return "packed on the fly" if name in ("packed", "decoded") and not packed else name


cdef mp_layout layout_of(fmt, Py_ssize_t rows, Py_ssize_t cols, bint transposed):
    """A contiguous matrix, or the transpose of one."""
    cdef mp_layout layout
    cdef Py_ssize_t size = mp_element_bytes[<int>fmt]
    layout.format, layout.size = fmt, <int>size
    layout.rs, layout.cs = (size, rows * size) if transposed else (cols * size, size)
    return layout


def _checked(shape, dtype, settings):
    """Return the settings with their defaults; raise if one is unknown."""
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
        Type of A: a float type, int8 or uint8.
    **settings
        What else a plan depends on: :data:`SETTINGS`.

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
        mp_find_plan(&q, &p)  # as a product does
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
