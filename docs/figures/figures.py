"""Draw the figures of docs/ from stored data or by training: make figures, python docs/figures/figures.py NAME..."""

import sys

import accuracy
import casts
import loss_scale
import minilm
import policies
import products
import quantize
import roofline
import style

FIGURES = {
    name: drawn
    for module in (minilm, policies, roofline, products, casts, quantize, accuracy, loss_scale)
    for name, drawn in module.FIGURES.items()
}
"""Name -> title, function that draws it."""


def main() -> None:
    for name in sys.argv[1:] or FIGURES:
        title, draw = FIGURES[name]
        path = style.IMAGES / f"{name}.svg"
        path.write_bytes(style.render(draw, title))
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
