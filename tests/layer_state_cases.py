"""Layers that assign to their own variables in `call`, in models of mp_core and of Keras."""

import numpy as np

CODES = 5
STEPS = 4


def layers_of(k):
    """Return the classes, made of the layers and operations of a package."""
    ops = k.ops

    class Masked(k.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.supports_masking = True

        def compute_output_shape(self, input_shape):
            return input_shape

    class Count(Masked):
        """Counts its calls in integers, whether they train or not."""

        def build(self, input_shape):
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32", name="count")

        def call(self, inputs):
            self.count.assign_add(1)
            return inputs

    class Mean(Masked):
        """Centres by a running mean, and counts the steps of training that moved it."""

        def build(self, input_shape):
            shape = (input_shape[-1],)
            self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")
            self.mean = self.add_weight(shape=shape, initializer="zeros", trainable=False, name="mean")

        def call(self, inputs, training=False):
            if training:
                axes = tuple(range(len(inputs.shape) - 1))
                self.steps.assign_add(1.0)
                self.mean.assign(self.mean * 0.75 + ops.mean(inputs, axis=axes) * 0.25)
            return inputs - self.mean

    class Total(k.layers.Layer):
        """Returns the total of all rows so far, beside the inputs."""

        def build(self, input_shape):
            self.total = self.add_weight(shape=(input_shape[-1],), initializer="zeros", trainable=False, name="total")

        def call(self, inputs):
            self.total.assign_add(ops.sum(inputs, axis=0))
            return inputs + 0.01 * self.total

    class Codebook(k.layers.Layer):
        """Quantizes rows to the nearest code; codes follow the rows by exponential averages."""

        def build(self, input_shape):
            width = input_shape[-1]
            codes = np.linspace(-1, 1, CODES * width).reshape(CODES, width).astype("float32")
            self.codes = self.add_weight(shape=codes.shape, initializer="zeros", trainable=False, name="codes")
            self.sizes = self.add_weight(shape=(CODES,), initializer="ones", trainable=False, name="sizes")
            self.sums = self.add_weight(shape=codes.shape, initializer="zeros", trainable=False, name="sums")
            self.codes.assign(codes)
            self.sums.assign(codes)

        def call(self, inputs, training=False):
            codes = ops.transpose(self.codes)
            distances = (
                ops.sum(ops.square(inputs), axis=1, keepdims=True)
                - 2.0 * ops.matmul(inputs, codes)
                + ops.sum(ops.square(codes), axis=0, keepdims=True)
            )
            nearest = ops.argmin(distances, axis=1)
            places = ops.cast(ops.equal(ops.expand_dims(nearest, -1), np.arange(CODES)), "float32")
            quantized = ops.matmul(places, self.codes)
            if training:
                self.sizes.assign(self.sizes * 0.9 + ops.sum(places, axis=0) * 0.1)
                self.sums.assign(self.sums * 0.9 + ops.matmul(ops.transpose(places), inputs) * 0.1)
                self.codes.assign(self.sums / ops.expand_dims(self.sizes, -1))
            self.add_loss(0.25 * ops.mean(ops.square(ops.stop_gradient(quantized) - inputs)))
            return inputs + ops.stop_gradient(quantized - inputs)

    return {kind.__name__: kind for kind in (Count, Mean, Total, Codebook)}


def _stack(k, name):
    kind = layers_of(k)[name]
    return k.Sequential([k.Input((3,)), k.layers.Dense(4), kind(name="state"), k.layers.Dense(1)])


def _shared(k):
    layer, x = layers_of(k)["Mean"](name="state"), k.Input((3,))
    return k.Model(x, k.layers.Dense(1)(k.layers.concatenate([layer(x), layer(k.layers.Rescaling(2.0)(x))])))


def _nested(k):
    inner = k.Sequential([k.layers.Masking(), layers_of(k)["Mean"](name="state"), layers_of(k)["Count"]()])
    x = k.Input((4, 3))
    y = k.layers.GlobalAveragePooling1D()(inner(x))
    return k.Model(x, k.layers.Dense(1)(y))


def _steps(k):
    x = k.Input((4, 3))
    y = k.layers.TimeDistributed(layers_of(k)["Mean"](name="state"))(x)
    return k.Model(x, k.layers.Dense(1)(k.layers.Flatten()(y)))


def _subclass(k):
    class Net(k.Model):
        def __init__(self):
            super().__init__()
            self.first, self.last = layers_of(k)["Total"](name="state"), k.layers.Dense(1)
            self.norm, self.drop = k.layers.BatchNormalization(), k.layers.Dropout(0.0)

        def call(self, inputs, training=False):
            return self.last(self.drop(self.norm(self.first(inputs), training=training)))

    return Net()


CASES = {name: lambda k, name=name: _stack(k, name) for name in ("Count", "Mean", "Total", "Codebook")}
CASES |= {"shared": _shared, "nested": _nested, "steps": _steps, "subclass": _subclass}


def batch(name, number):
    """Return inputs and targets of a step."""
    rng = np.random.default_rng(number)
    shape = (8, 4, 3) if name in ("nested", "steps") else (8, 3)
    x = rng.standard_normal(shape).astype("float32")
    return x, x.reshape(8, -1)[:, :1] * 2


def model_of(k, name):
    """Return a compiled model whose weights are small numbers in a row."""
    model = CASES[name](k)
    _set_weights(model)
    model(batch(name, 0)[0][:1])  # builds a subclass, and counts where every call does
    _set_weights(model)
    model.compile(k.optimizers.SGD(0.05), "mse", metrics=["mae"], run_eagerly=True)
    return model


def _set_weights(model):
    for number, variable in enumerate(model.trainable_variables):
        values = np.linspace(-0.5, 0.5, int(np.prod(variable.shape)) + number)[number:]
        variable.assign(values.reshape(variable.shape))


def states_of(model):
    """Return the values of all weights in one row."""
    return np.concatenate([np.asarray(v.numpy(), "float64").reshape(-1) for v in model.weights])


def run(model, name):
    """Train, evaluate and predict; return the weights after each of these."""
    found = [states_of(model)]
    for number in range(STEPS):
        model.train_on_batch(*batch(name, number))
        found.append(states_of(model))
    x, y = (np.concatenate(arrays) for arrays in zip(*(batch(name, n) for n in range(3)), strict=True))
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    found.append(states_of(model))
    for _ in range(2):
        model.evaluate(x, y, batch_size=8, verbose=0)
        found.append(states_of(model))
        model.predict(x, batch_size=8, verbose=0)
        found.append(states_of(model))
        model(x[:2])
        found.append(states_of(model))
    return np.array(found)
