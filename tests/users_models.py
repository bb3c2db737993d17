"""Models of users' classes, written once for mp_core and for Keras."""


def make_classes(api):
    """Return name -> class, of `mp_core` or of `keras`."""
    layers = api.layers
    saving = api.saving

    class Scaled(layers.Layer):
        def __init__(self, units, factors=(), **kwargs):
            super().__init__(**kwargs)
            self.dense = layers.Dense(units)

        def call(self, x):
            return self.dense(x) * 2.0

    class Bare(layers.Layer):
        def __init__(self, units=2):
            super().__init__()
            self.dense = layers.Dense(units)

        def call(self, x):
            return self.dense(x)

    class Plain(api.Model):
        def __init__(self, units=3, **kwargs):
            super().__init__(**kwargs)
            self.hidden, self.head = layers.Dense(units, "relu"), layers.Dense(2)

        def call(self, x):
            return self.head(self.hidden(x))

    class Blocks(api.Model):
        def __init__(self, sizes=(4,), **kwargs):
            super().__init__(**kwargs)
            self.blocks = [layers.Dense(size, "tanh") for size in sizes]
            self.heads = {"a": layers.Dense(2), "b": Scaled(2)}

        def call(self, x):
            for block in self.blocks:
                x = block(x)
            return self.heads["a"](x) + self.heads["b"](x)

    class Configured(api.Model):
        def __init__(self, head, **kwargs):
            super().__init__(**kwargs)
            self.hidden, self.head = layers.Dense(3), head

        def call(self, x):
            return self.head(self.hidden(x))

        def get_config(self):
            return super().get_config() | {"head": saving.serialize_keras_object(self.head)}

        @classmethod
        def from_config(cls, config):
            return cls(**config | {"head": saving.deserialize_keras_object(config["head"])})

    class Nested(api.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.stack = api.Sequential([layers.Dense(4, "relu"), layers.Dense(3)])
            self.inner = Plain(3)

        def call(self, x):
            return self.inner(self.stack(x))

    class Graph(api.Model):
        def __init__(self, **kwargs):
            x = api.Input((4,))
            super().__init__(inputs=x, outputs=layers.Dense(2)(layers.Dense(3, "relu")(x)), **kwargs)

        def get_config(self):
            return {"name": self.name}

        @classmethod
        def from_config(cls, config):
            return cls(**config)

    class GraphOfUnits(api.Model):
        def __init__(self, units, **kwargs):
            x = api.Input((4,))
            super().__init__(x, layers.Dense(2)(layers.Dense(units, "relu")(x)), **kwargs)
            self.units = units

        def own(self):
            return 1

    class OwnGraph(api.Model):
        def own(self):
            return 1

    class Stack(api.Sequential):
        def own(self):
            return 1

    class OfList(api.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.left, self.right = layers.Dense(2), layers.Dense(2)

        def call(self, inputs):
            left, right = inputs
            return self.left(left) + self.right(right)

    class OfDict(api.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.left, self.right = layers.Dense(2), layers.Dense(2)

        def call(self, inputs):
            return self.left(inputs["left"]) + self.right(inputs["right"])

    class OfArguments(api.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.dense = layers.Dense(2)

        def call(self, x, scale=None, negative=False):
            return self.dense(x) * scale * (-1.0 if negative else 1.0)

    class Anything(api.Model):
        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)
            self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    class Various(Anything):
        def __init__(self, *sizes):
            super().__init__(2)

    class OwnCompile(Plain):
        def compile(self, *args, **kwargs):
            super().compile(*args, **kwargs)

    class Compiling(Plain):
        def compile(self, optimizer, loss, extra):
            super().compile(optimizer, loss)
            self.extra = extra

        def get_compile_config(self):
            return super().get_compile_config() | {"extra": self.extra}

        def compile_from_config(self, config):
            self.compile(config["optimizer"], config["loss"], config["extra"])

    return {name: kind for name, kind in locals().items() if isinstance(kind, type)}
