"""Classification of images of digits by a perceptron."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8).astype("float32") / 16
x_train, y_train = images[:1500], labels[:1500]
x_test, y_test = images[1500:], labels[1500:]

model = keras.Sequential(
    [
        keras.Input(shape=(8, 8)),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ]
)
model.summary()
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=["accuracy"],
)
model.fit(x_train, y_train, epochs=15, batch_size=32, validation_split=0.1, verbose=0)
test_loss, test_acc = model.evaluate(x_test, y_test, verbose=0)
predictions = model.predict(x_test, verbose=0)
assert np.isclose(np.mean(predictions.argmax(axis=1) == y_test), test_acc)
model.save("digits.keras")
reloaded = keras.saving.load_model("digits.keras")
assert np.allclose(reloaded.predict(x_test, verbose=0), predictions, atol=1e-6)
print("SCORE", test_acc)
assert test_acc > 0.88
