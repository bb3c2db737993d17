"""all-MiniLM-L6-v2 under every policy: the error that each layer adds, speed against accuracy, memory."""

from style import INK, Figure, load, log_axis, new

SCHEMES = {
    "bfloat16": ("#5c8a00", "o"), "int8/weight_only": ("#00939e", "D"), "float8_e4m3fn": ("#6a7fdb", "^"),
    "int8": ("#d1495b", "s"), "int4/64": ("#9c6b30", "X"),
}  # fmt: skip


def layers() -> Figure:
    """One point for each layer and scheme, layer by layer from the embeddings to the last block."""
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


FIGURES = {"layers": ("The error that each layer of all-MiniLM-L6-v2 adds under each scheme, the others exact", layers)}
