"""The functional API: several inputs and outputs, of customers' tickets."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)

num_tags, num_words, num_departments = 12, 500, 4

title_input = keras.Input(shape=(None,), name="title", dtype="int32")
body_input = keras.Input(shape=(None,), name="body", dtype="int32")
tags_input = keras.Input(shape=(num_tags,), name="tags")

title_features = layers.GlobalAveragePooling1D()(layers.Embedding(num_words, 32)(title_input))
body_features = layers.GlobalAveragePooling1D()(layers.Embedding(num_words, 32)(body_input))
x = layers.concatenate([title_features, body_features, tags_input])

priority_pred = layers.Dense(1, name="priority")(x)
department_pred = layers.Dense(num_departments, name="department")(x)
model = keras.Model(
    inputs=[title_input, body_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-2),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
)

rng = np.random.default_rng(0)
title_data = rng.integers(num_words, size=(640, 10)).astype("int32")
body_data = rng.integers(num_words, size=(640, 20)).astype("int32")
tags_data = rng.integers(2, size=(640, num_tags)).astype("float32")
priority_targets = tags_data[:, :1]
dept_targets = keras.utils.to_categorical(title_data[:, 0] % num_departments, num_departments)

history = model.fit(
    {"title": title_data, "body": body_data, "tags": tags_data},
    {"priority": priority_targets, "department": dept_targets},
    epochs=8,
    batch_size=32,
    verbose=0,
)
print("SCORE", history.history["loss"][-1])
assert history.history["loss"][-1] < 0.5 * history.history["loss"][0]
