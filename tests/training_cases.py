"""Data sets of scikit-learn's wheel, with a model, an optimizer and a loss for each, for mp_core and Keras."""

import numpy as np
from sklearn import datasets

CASES = {
    "digits": ((64, "relu"), (10, "softmax"), "Adam", {"learning_rate": 0.003}, "sparse_categorical_crossentropy"),
    "wine": ((16, "tanh"), (3, "softmax"), "SGD", {"learning_rate": 0.05, "momentum": 0.9}, "categorical_crossentropy"),
    "breast_cancer": ((16, "gelu"), (1, "sigmoid"), "RMSprop", {"learning_rate": 0.002}, "binary_crossentropy"),
    "diabetes": ((16, "relu"), (1, None), "AdamW", {"learning_rate": 0.02, "weight_decay": 0.01}, "mean_squared_error"),
}
"""Name -> units and activation of two layers, optimizer with its arguments, loss."""
BATCH, STEPS = 32, 100


def data(name):
    """Return inputs of unit variance, and targets."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    x = ((x - x.mean(0)) / (x.std(0) + 1e-3)).astype(np.float32)
    if name == "wine":
        return x, np.eye(3, dtype=np.float32)[y]
    if name == "diabetes":
        return x, ((y - y.mean()) / y.std()).astype(np.float32)[:, None]
    return x, y.astype(np.int32) if name == "digits" else y.astype(np.float32)[:, None]


def batches(name):
    """Yield the batches of the steps."""
    x, y = data(name)
    for step in range(STEPS):
        index = np.arange(step * BATCH, (step + 1) * BATCH) % len(x)
        yield x[index], y[index]


def model(library, name, policy="float32"):
    """Return the model of a data set, of mp_core or of Keras."""
    hidden, last, *_ = CASES[name]
    dense = library.layers.Dense
    return library.Sequential([
        library.Input((data(name)[0].shape[1],)),
        dense(hidden[0], activation=hidden[1], dtype=policy), dense(last[0], activation=last[1], dtype="float32"),
    ], **({} if policy == "float32" else {"dtype": policy}))  # fmt: skip


def losses(library, trained, name):
    """Return the loss of each step, with the weights before it."""
    compiled(library, trained, name)
    found = []
    for x, y in batches(name):
        trained.reset_metrics()
        found.append(float(np.ravel(trained.train_on_batch(x, y))[0]))
    return found


SEEDS, EPOCHS = range(5), 4


def score(trained, name):
    """Return the share of right answers (of diabetes: the explained variance) for the last fifth, after some epochs."""
    x, y = data(name)
    count = len(x) * 4 // 5
    trained.fit(x[:count], y[:count], batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    outputs, wanted = np.asarray(trained.predict(x[count:], verbose=0)).astype(np.float64), y[count:]
    if name == "diabetes":
        return 1 - ((outputs - wanted) ** 2).mean() / wanted.var()
    if outputs.shape[-1] == 1:
        return ((outputs > 0.5) == wanted).mean()
    return (outputs.argmax(-1) == (wanted.argmax(-1) if wanted.ndim > 1 else wanted)).mean()


def compiled(library, trained, name):
    """Return a model with the optimizer and the loss of its data set."""
    *_, optimizer, options, loss = CASES[name]
    trained.compile(getattr(library.optimizers, optimizer)(**options), loss)
    return trained
