"""Accuracy of operations: functions in ULP, products as a share of the proved bound."""

from style import INK, LIBRARIES, Figure, load, log_axis, new

STYLES = {"float32": ("-", "o"), "float16": ("--", "s"), "bfloat16": (":", "D")}
OURS = LIBRARIES["mp_core"][0]


def draw() -> Figure:
    report = load("accuracy")
    figure, (left, right) = new(4.6, 1, 2)
    functions = [record for record in report.records if record.operation == "function"]
    left.barh([record.shape for record in functions], [record.rate for record in functions],
              color=OURS, height=0.7)  # fmt: skip
    for place, record in enumerate(functions):
        text = f"{record.rate:.2f}"
        left.annotate(text, (record.rate, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    left.invert_yaxis()
    left.tick_params(axis="y", labelsize=8)
    left.set_xlim(0, 1.25 * max(record.rate for record in functions))
    left.set_xlabel("largest error, ULP of float32")
    left.grid(axis="x")
    for dtype, (line, marker) in STYLES.items():
        rows = [record for record in report.records if (record.operation, record.dtype) == ("product", dtype)]
        depths = [int(record.shape.split("x")[1]) for record in rows]
        right.plot(depths, [record.rate for record in rows], color=OURS, linestyle=line, marker=marker, label=dtype)
    right.axhline(1, color=INK, linewidth=1)
    right.text(16, 0.88, "proved bound", va="top", fontsize=8.5)
    log_axis(right.xaxis, (16, 256, 4096))
    log_axis(right.yaxis, (0.001, 0.01, 0.1, 1))
    right.set_xlabel("K, terms of a sum")
    right.set_ylabel("largest error over the bound")
    right.grid()
    right.legend()
    return figure


FIGURES = {"accuracy": ("Largest errors of functions in ULP, and of products as shares of the proved bound", draw)}
