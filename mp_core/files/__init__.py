"""Files of weights and models: checkpoints, archives, HDF5. No layer and no model is known here.

It imports policies and the rooms below it; layers and the rooms above it may import it.
"""
