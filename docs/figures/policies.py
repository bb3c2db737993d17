"""all-MiniLM-L6-v2 under every policy: the error that each layer adds, speed against accuracy, memory."""

from style import INK, LIBRARIES, Figure, legend, load, log_axis, new, points

from mp_core.cli.benchmark.records import library

SCHEMES = {
    "bfloat16": ("#5c8a00", "o"), "int8/weight_only": ("#00939e", "D"), "float8_e4m3fn": ("#6a7fdb", "^"),
    "int8": ("#d1495b", "s"), "int4/64": ("#9c6b30", "X"),
}  # fmt: skip


def layers() -> Figure:
    """Draw one point for each layer and scheme, layer by layer from the embeddings to the last block."""
    report = load("layers")
    figure, axes = new(3.2)
    rows = [record for record in report.records if record.operation == "layer"]
    paths = list(dict.fromkeys(record.shape for record in rows if record.dtype.startswith("int8_")))
    for scheme, (colour, marker) in SCHEMES.items():
        found = {record.shape: record.rate for record in rows if record.dtype.partition("_from_")[0] == scheme}
        axes.plot([found[path] for path in paths], color=colour, marker=marker, linewidth=0.7, label=scheme)
    blocks = [paths.index(path) for path in paths if path.endswith("query")]
    for first in blocks:
        axes.axvline(first - 0.5, color=INK, linewidth=0.6, alpha=0.5)
    log_axis(axes.yaxis, (0.001, 0.01, 0.1))
    axes.set_xticks([0, *(first + 2.5 for first in blocks)], ["words", *range(1, 7)])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("of each block: query, key, value, attention output, intermediate, output")
    axes.set_ylabel("relative error of the embeddings")
    axes.grid(axis="y")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


FLOOR = 1e-5  # 1 - cosine, for data without more digits
# Position of the text of a point: points to the right and up, alignment. By default the text is on the right. None: no
# text, because the text of ONNX Runtime beside it is the same.
TEXTS = {
    "float32": (6, 4, "left"), "mixed_float16": (-2, -14, "right"), "int4/64+": (6, -9, "left"),
    "int4/32+": (-7, -3, "right"), "ORT float32": (-7, -3, "right"), "torch float32": None, "OpenVINO float32": None,
    "int8/weight_only/64": (-7, -3, "right"), "float8_e4m3fn": (-7, -3, "right"),
}  # fmt: skip


def accuracy() -> Figure:
    """Draw documents per second and 1 - cosine of every policy, and of the peers in every precision."""
    report = load("policies-zen3")
    figure, axes = new(4.4)
    for record in report.records:
        place = record.rate, max(FLOOR, 1 - record.details["cosine"])
        points(axes, [(*place, record.contender)])
        own = library(record.contender) == "mp_core"
        name = record.contender.removesuffix("+") if own else record.contender.partition(" ")[2]
        where = TEXTS.get(record.contender, (6, -3, "left"))
        if where:
            text = f"{name}, {record.details['MB']:.0f} MB"
            axes.annotate(text, place, where[:2], textcoords="offset points", ha=where[2], fontsize=8)
    axes.set_xlim(0, 58)
    axes.set_xlabel("documents per second on one thread: 50 news items, from token ids")
    log_axis(axes.yaxis, (FLOOR, 1e-4, 1e-3, 1e-2), ("\u2264 0.00001", "0.0001", "0.001", "0.01"))
    axes.set_ylim(0.05, FLOOR / 2.2)
    axes.set_ylabel("1 - least cosine")
    axes.grid()
    legend(figure, [axes], title=f"{report.cpu}, {report.isa}, {report.date}")
    return figure


def memory() -> Figure:
    """Draw the megabytes of the weights: mp_core by policy, then the peers' models."""
    found = [record for name in ("layers", "models") for record in load(name).records if record.operation == "weights"]
    found.sort(key=lambda record: -record.rate)
    figure, axes = new(2.9)
    for place, record in enumerate(found):
        owner = library(record.contender)
        axes.barh(place, record.rate, color=LIBRARIES[owner][0], height=0.62, label=owner)
        text = f"{record.rate:.1f}"
        axes.annotate(text, (record.rate, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_yticks(range(len(found)), [record.dtype for record in found])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("MB of weights, all-MiniLM-L6-v2")
    axes.grid(axis="x")
    legend(figure, [axes])
    return figure


FIGURES = {
    "policies": ("Speed and accuracy of all-MiniLM-L6-v2 under every policy, and of the peers", accuracy),
    "memory": ("Megabytes of the weights of all-MiniLM-L6-v2 by policy, and of the peers' models", memory),
    "layers": ("The error that each layer of all-MiniLM-L6-v2 adds under each scheme, the others exact", layers),
}
