"""An autoencoder: two models; one is called with the outputs of the other."""

import keras
from keras import layers
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)

x, _ = load_digits(return_X_y=True)
x = (x / 16).astype("float32")

encoder_input = keras.Input(shape=(64,), name="image")
hidden = layers.Dense(32, activation="relu")(encoder_input)
encoder = keras.Model(encoder_input, layers.Dense(8, activation="relu")(hidden), name="encoder")

decoder_input = keras.Input(shape=(8,), name="code")
hidden = layers.Dense(32, activation="relu")(decoder_input)
decoder = keras.Model(decoder_input, layers.Dense(64, activation="sigmoid")(hidden), name="decoder")

autoencoder_input = keras.Input(shape=(64,), name="both")
autoencoder = keras.Model(autoencoder_input, decoder(encoder(autoencoder_input)), name="autoencoder")
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
history = autoencoder.fit(x[:1500], x[:1500], epochs=20, batch_size=64, shuffle=True, verbose=0,
                          validation_data=(x[1500:], x[1500:]))  # fmt: skip
assert encoder.predict(x[:5], verbose=0).shape == (5, 8)
print("SCORE", history.history["val_loss"][-1])
assert history.history["val_loss"][-1] < 0.75 * history.history["val_loss"][0]
