"""all-MiniLM-L6-v2 under every policy: the error that each layer adds, speed against accuracy, memory."""

from style import Figure, load, new

SCHEMES = {
    "bfloat16": ("#1a7fd4", "o"), "int8/weight_only": ("#009e73", "D"), "float8_e4m3fn": ("#8a68d0", "^"),
    "int8": ("#d55e00", "s"), "int4/64": ("#a08400", "X"),
}  # fmt: skip
KINDS = ("query", "key", "value", "attention output", "intermediate", "output")


def layers() -> Figure:
    """One point for each layer and scheme, layer by layer from the embeddings to the last block."""
    report = load("layers")
    figure, axes = new(3.2)
    rows = [record for record in report.records if record.operation == "layer"]
    paths = list(dict.fromkeys(record.shape for record in rows))
    for scheme, (colour, marker) in SCHEMES.items():
        found = [record for record in rows if record.dtype.partition("_from_")[0].removeprefix("mixed_") == scheme]
        places = [paths.index(record.shape) for record in found]
        errors = [record.rate for record in found]
        axes.plot(places, errors, color=colour, marker=marker, linewidth=0.7, label=scheme)
    axes.set_yscale("log")
    axes.set_xlabel("layers, from the embeddings to the last block")
    axes.set_ylabel("relative error of the embeddings")
    axes.grid(axis="y")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


FIGURES = {"layers": ("The error that each layer of all-MiniLM-L6-v2 adds under each scheme, the others exact", layers)}
