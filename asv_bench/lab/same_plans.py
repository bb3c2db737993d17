"""List the products that two builds plan differently, for any CPU, also one that you do not have.

    python same_plans.py OLD NEW --cpu zen4 --isa avx512_bf16 --caches 32768 1048576

OLD and NEW are interpreters that import a build, or folders with its mp_core. A plan decides how B is read, how a
product is divided and what is prefetched. So a product with the same plan, whose kernels have the same machine code
(same_code.py), does the same work in both builds. The fields of a plan that both builds have are compared.
"""

import argparse
import collections
import itertools
import json
import os
import subprocess
import sys

ROWS = (1, 2, 3, 6, 7, 12, 16, 25, 31, 48, 49, 64, 96, 97, 128, 192, 193, 512, 1024, 2048)
MATRICES = (  # K, N
    *((16, 16), (64, 64), (75, 130), (1100, 70), (64, 4096), (4096, 64), (384, 1536), (768, 768)),
    *((768, 3072), (3072, 768), (1024, 1024), (2048, 2048), (4096, 4096)),
)
PAIRS = (  # the types of A and B
    *(("float32", b) for b in ("float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "int4")),
    *(("bfloat16", b) for b in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int4")),
    *(("float16", "float16"), ("float8_e4m3fn", "float8_e4m3fn"), ("int8", "int8"), ("uint8", "int8")),
)
THREADS = (1, 2, 16)


def products():
    """Yield m, k, n, the type of A, and the settings of a plan."""
    layouts = ("packed", "kn", "nk")
    for (a, b), layout, threads, m, (k, n) in itertools.product(PAIRS, layouts, THREADS, ROWS, MATRICES):
        if b == "int4" and layout != "packed":
            continue
        settings = {"b_dtype": b, "layout": layout, "threads": threads}
        yield m, k, n, a, settings
        if a == "int8":
            yield m, k, n, a, settings | {"zero_point": True}
        elif a != "uint8" and b == "int8":
            yield m, k, n, a, settings | {"quantize": "found"}
        if a in ("float32", "bfloat16") and b in ("int8", "int4") and layout == "packed":
            yield m, k, n, a, settings | {"group": 64}


def work(folder, machine):
    """Write the plans of the build that this process imports, a line each."""
    if folder:
        # The finder of an editable install would be asked before the folder.
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "MesonpyMetaFinder"]
        sys.path.insert(0, folder)
    from mp_core.arrays.products.plans import SETTINGS, product_plan

    order = {"reproducible": True} if "reproducible" in SETTINGS else {}
    for m, k, n, a, settings in products():
        plan = product_plan(m, k, n, a, **settings, **order, **machine)
        print(json.dumps({key: value for key, value in plan.items() if key != "limits"}))


def plans(where, machine):
    """Return the plans of a build, in the order of `products`."""
    python = where if os.path.isfile(where) else sys.executable
    folder = "" if python == where else os.path.abspath(where)
    command = [python, __file__, "--work", folder, json.dumps(machine)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def differences(old, new):
    """Return the names of the fields that both plans have and that differ."""
    return tuple(sorted(key for key in old.keys() & new.keys() if old[key] != new[key]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--cpu", help="family whose tuned constants are used; default: this machine's")
    parser.add_argument("--isa", help="instruction set; default: the one in use")
    parser.add_argument("--caches", type=int, nargs=2, metavar=("L1D", "L2"), help="bytes; default: this machine's")
    options = parser.parse_args()
    machine = {"cpu": options.cpu, "isa": options.isa, "caches": options.caches}
    groups = collections.defaultdict(list)
    compared = 0
    for product, old, new in zip(products(), plans(options.old, machine), plans(options.new, machine), strict=True):
        compared += 1
        if other := differences(old, new):
            groups[product[4]["threads"], other].append(product)
    print(f"{sum(map(len, groups.values()))} of {compared} plans differ")
    for (threads, other), found in sorted(groups.items()):
        m, k, n, a, settings = found[0]
        print(f"{len(found)} with {threads} threads, in {', '.join(other)}: the first is {m}x{k}x{n} {a} {settings}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main()
