"""A loss scale that falls and rises while a small network trains under mixed_float16."""

import numpy as np
from style import LIBRARIES, Figure, log_axis, new

import mp_core as mp
from mp_core import layers

STEPS, GROWTH, FIRST = 400, 50, 2.0**24


def trained() -> tuple[list[float], list[float]]:
    """Return the loss scale before each step, and the loss of each step: the same numbers on every machine."""
    state = np.random.default_rng(0)
    x = state.standard_normal((256, 8), np.float32)
    mp.random.set_seed(1)
    model = mp.Sequential([
        mp.Input((8,)), layers.Dense(32, "relu", dtype="mixed_float16"), layers.Dense(1, dtype="float32"),
    ], dtype="mixed_float16")  # fmt: skip
    adam = mp.optimizers.Adam(0.01)
    optimizer = mp.optimizers.LossScaleOptimizer(adam, initial_scale=FIRST, dynamic_growth_steps=GROWTH)
    model.compile(optimizer, "mse")
    scales, losses = [], []
    with mp.config.reproducible():
        for step in range(STEPS):
            rows = np.arange(32 * step, 32 * (step + 1)) % len(x)
            scales.append(optimizer.dynamic_scale)
            model.reset_metrics()
            losses.append(model.train_on_batch(x[rows], x[rows, :1] * x[rows, 1:2]))
    return scales, losses


def draw() -> Figure:
    scales, losses = trained()
    figure, (upper, lower) = new(3.4, 2, 1, sharex=True)
    colour = LIBRARIES["mp_core"][0]
    upper.step(range(STEPS), scales, where="post", color=colour)
    upper.set_yscale("log", base=2)
    upper.set_ylabel("loss scale")
    skipped = [step for step in range(STEPS - 1) if scales[step + 1] < scales[step]]
    for axes, values in ((upper, scales), (lower, losses)):
        axes.plot(skipped, [values[step] for step in skipped], "x", color="#d1495b", label="step left out")
        axes.grid()
    lower.plot(losses, color=colour, linewidth=0.8)
    log_axis(lower.yaxis, (0.01, 0.1, 1))
    lower.set_ylabel("loss of the batch")
    lower.set_xlabel("step")
    upper.legend()
    return figure


FIGURES = {
    "loss-scale": ("A loss scale halves at each step with infinite gradients and doubles after 50 finite ones", draw)
}
