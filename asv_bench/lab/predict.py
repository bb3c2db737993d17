"""Predict the share of peak that the micro-kernels of products reach on a CPU, with llvm-mca's model of its ports.

    python asv_bench/lab/predict.py BUILD MODEL...          MODEL: neoverse-v1, sapphirerapids, znver4, ...

The inner loop of each micro-kernel is read from the object files of a build: the loop of a function with the largest
share of multiply-adds. llvm-mca runs it repeatedly; caches, branches and the code around the loop are not modelled. The
peak is the throughput of the ports for the multiply-adds alone ("Block RThroughput" of the same model), without
dependencies. So the share shows the cost of loads, broadcasts, decoding and the latency of the sums. It is a
prediction, not a measurement.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ISAS = ("avx512_bf16", "avx512_vnni", "avx512", "avx2_vnni", "avx2", "neon_bf16", "neon_dotprod", "neon")
MULTIPLY_ADD = re.compile(
    r"v?(fmla|smlal2?|smull2?|bfmlal[bt]|[su]dot|usdot|sudot|u?smmla|fmadd\d+ps|dpbf16ps|pdpbusds?|pmaddwd)\b"
)
FUNCTION = re.compile(
    r"^[0-9a-f]+ <micro_kernel_(?P<kind>\w+)_(?P<rows>\d+)x(?P<vectors>\d+)>:\n(?P<body>(?:.+\n)+)", re.M
)
LINE = re.compile(r"\s*(?P<address>[0-9a-f]+):\s+(?P<text>\S.*?)(?:\s*(?://|#\s).*)?$")
BRANCH = re.compile(r"(?:b\.?\w{0,2}|cbn?z|tbn?z|j\w+)\s+(?:\w+, )*(?:#\w+, )?(?:0x)?(?P<target>[0-9a-f]+) <")
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
ITERATIONS = 300


def tool(name):
    """Return the newest installed version of an LLVM tool."""
    found = [path for version in range(25, 13, -1) if (path := shutil.which(f"{name}-{version}"))] + [
        shutil.which(name)
    ]
    if not found[0]:
        sys.exit(f"predict.py needs {name} (Debian: apt install llvm)")
    return found[0]


def output(*command, text=None):
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stderr}")
    return done.stdout


def objects(build):
    """Return (instruction set, object file of its products) of a build."""
    for isa in ISAS:
        for path in sorted(Path(build).glob(f"**/libmp_kernels_{isa}.a.p/*products_products.c.o")):
            yield isa, path


def innermost(body):
    """Return the loop with the largest share of multiply-adds, as lines of assembly."""
    lines = [(int(m["address"], 16), m["text"]) for m in map(LINE.match, body.splitlines()) if m]
    index = {address: i for i, (address, _) in enumerate(lines)}
    loops = []
    for end, (_, text) in enumerate(lines):
        branch = BRANCH.match(text)
        start = index.get(int(branch["target"], 16)) if branch else None
        if start is not None and start <= end:
            loop = [text for _, text in lines[start : end + 1]]
            busy = sum(map(bool, map(MULTIPLY_ADD.match, loop)))
            if busy:
                loops.append((busy / len(loop), loop))
    return max(loops, default=(0, []))[1]


def straight(loop):
    """Return a loop for llvm-mca: the code of one iteration, up to the first branch after the last multiply-add."""
    last = max(i for i, text in enumerate(loop) if MULTIPLY_ADD.match(text))
    kept = []
    for i, text in enumerate(loop):
        if BRANCH.match(text):
            if i > last:
                break
            continue
        kept.append(re.sub(r" <.*>", "", text))  # the name beside an address
    return kept


def simulated(code, model, architecture, figure):
    """Return a figure of llvm-mca's summary for the code, which is run repeatedly."""
    mca = [tool("llvm-mca"), f"-mtriple={architecture}-linux-gnu", f"-mcpu={model}", f"-iterations={ITERATIONS}"]
    if architecture == "aarch64":
        mca.append("-mattr=+bf16,+i8mm,+dotprod")
    found = re.search(rf"{figure}:\s+([\d.]+)", output(*mca, text="\n".join(code) + "\n"))
    return float(found[1])


def share_of_peak(code, model, architecture):
    peak = simulated(widened(alone(code)), model, architecture, "Block RThroughput")
    return peak * ITERATIONS / simulated(code, model, architecture, "Total Cycles")


def alone(code):
    """Return the multiply-adds alone: nothing writes their operands. (x86: memory operands become a register.)"""
    return tuple(re.sub(r"-?\w*\(%[^)]*\)(\{1to\d+\})?", "%xmm0", text) for text in code if MULTIPLY_ADD.match(text))


def widened(code):
    """Return the register that replaces a memory operand, in the width of the others."""
    return tuple(
        text.replace("%xmm0", "%zmm31" if "%zmm" in text else "%ymm15") if "%xmm0" in text else text for text in code
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="a meson build directory")
    parser.add_argument("models", nargs="+", help="CPUs, as llvm-mca -mcpu names them")
    parser.add_argument("--least", type=float, default=0, help="exit with 1 if a share of these kinds is less")
    parser.add_argument("--kinds", default=r"wide_f32|pairs_bf16|quads_\w+", help="kinds that --least checks")
    parser.add_argument("--show", action="store_true", help="print the loops too")
    options = parser.parse_args()
    objdump, low = tool("llvm-objdump"), []
    print(f"{'instruction set':16}{'kind':18}{'block':>8}" + "".join(f"{model:>18}" for model in options.models))
    for isa, path in objects(options.build):
        machine = next(MACHINES[m] for m in MACHINES if m in output(tool("llvm-readobj"), "--file-headers", path))
        features = ["--mattr=+bf16,+i8mm,+dotprod"] if machine == "aarch64" else []
        text = output(objdump, "-d", "--no-show-raw-insn", *features, path)
        largest = {}
        for m in FUNCTION.finditer(text):
            size, loop = (int(m["rows"]), int(m["vectors"])), innermost(m["body"])
            if loop:  # kinds with fewer rows have none in the others
                largest[m["kind"]] = max(largest.get(m["kind"], ((0, 0), [])), (size, loop))
        for kind, (size, loop) in sorted(largest.items()):
            code = straight(loop)
            shares = []
            for model in options.models:
                share = share_of_peak(code, model, machine)
                shares.append(share)
                if share < options.least and re.fullmatch(options.kinds, kind):
                    low.append(f"{isa} {kind} on {model}: {share:.0%}")
            print(f"{isa:16}{kind:18}{f'{size[0]}x{16 * size[1]}':>8}" + "".join(f"{share:18.0%}" for share in shares))
            if options.show:
                print(*code, sep="\n")
    if low:
        sys.exit("below the bound: " + "; ".join(low))


if __name__ == "__main__":
    main()
