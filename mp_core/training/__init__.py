"""Models that train: Keras' Model, Functional and Sequential, losses, metrics, optimizers, callbacks, saving.

It imports layers and the rooms below it; models and the rooms above it may import it.
"""
