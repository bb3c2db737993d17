"""The methods with which models are trained, evaluated and used, by Keras' names.

What they need is imported when they are called: a model that only predicts loads nothing of gradients or optimizers.
"""

from collections.abc import Callable
from typing import Any, cast

from mp_core.layers import Layer
from mp_core.training.passes import ForwardPasses

__all__ = ["Trainer"]


class Trainer:
    """What makes a layer a model; a base beside :class:`~mp_core.layers.Layer`."""

    _passes: ForwardPasses | None = None

    def _uncompile(self) -> None:
        """Forget what was made for the layers of before."""
        if self._passes is not None:
            self._passes = None

    def _traced(self) -> list[tuple[Layer, Any]]:
        """Return each call of a layer with its symbolic outputs, where these are known."""
        return []

    # ---- use

    def predict(self, x: Any, batch_size: int | None = None, verbose: Any = "auto", steps: int | None = None) -> Any:
        """Return the outputs for all samples, computed batch by batch.

        Parameters
        ----------
        x : array-like, list or dict of them, sequence or iterable of batches
            Of batches with targets or weights, these are left aside.
        batch_size : int, optional
            Default: 32. The outputs do not depend on it.
        verbose : {"auto", 0, 1, 2}
            Whether stderr says how far it is.
        steps : int, optional
            How many batches; default: all.

        Returns
        -------
        ndarray, or list or dict of them
            As the model arranges its outputs.

        Raises
        ------
        TypeError, ValueError
            `x` holds no arrays or batches of them, NaN, or nothing at all.

        Examples
        --------
        >>> import numpy as np
        >>> import mp_core as mp
        >>> model = mp.Sequential([mp.Input((4,)), mp.layers.Dense(2)])
        >>> model.predict(np.ones((100, 4)), verbose=0).shape
        (100, 2)
        """
        from mp_core.training.prediction import predicted

        return predicted(self.predict_on_batch, x, batch_size, verbose, steps)

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs for some samples: those of a call, by a plan from the second call with such shapes on."""
        if self._passes is None:
            self._passes = ForwardPasses(cast(Any, self))
        return self._passes(x)

    # ---- files

    def save(self, filepath: Any, overwrite: bool = True) -> None:
        """Write the model and its weights into a ``.keras`` file, which Keras opens too.

        :func:`mp_core.interop.keras.load_keras` reads it. The file is replaced in one step, when the new one is whole.

        Parameters
        ----------
        filepath : str or os.PathLike
            It ends in ``.keras``.
        overwrite : bool
            Whether to replace a file.

        Raises
        ------
        FileExistsError
            There is such a file, and `overwrite` is False.
        ValueError
            The model is not built, or `filepath` ends otherwise.
        """
        from mp_core.training.archive import save_model

        save_model(self, filepath, overwrite)

    def save_weights(self, filepath: Any, overwrite: bool = True) -> None:
        """Write the weights into a ``.weights.h5`` file, which Keras reads too; arguments and errors are of `save`."""
        from mp_core.training.archive import save_weights

        save_weights(self, filepath, overwrite)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False) -> None:
        """Assign the weights of a ``.weights.h5`` file, that of Keras included.

        Parameters
        ----------
        filepath : str or os.PathLike
        skip_mismatch : bool
            Whether to leave layers as they are that have other shapes in the file, and to warn.

        Raises
        ------
        ValueError
            The file is damaged, or of another model: the error says where. No weight has changed.
        """
        from mp_core.training.archive import load_weights

        load_weights(self, filepath, skip_mismatch)

    # ---- what it consists of

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """Return a layer of the model, by its name or its place.

        Raises
        ------
        ValueError
            There is no such layer, or neither or both of `name` and `index` are given.
        """
        layers: list[Layer] = cast(Any, self).layers
        if (name is None) == (index is None):
            raise ValueError(f"give `name` or `index`; received name={name!r}, index={index!r}")
        if index is not None:
            if not -len(layers) <= index < len(layers):
                raise ValueError(f"`index` must be below the {len(layers)} layers; received {index}")
            return layers[index]
        for layer in layers:
            if layer.name == name:
                return layer
        raise ValueError(f"`name` must be one of {[layer.name for layer in layers]}; received {name!r}")

    def summary(
        self,
        line_length: int | None = None,
        positions: Any = None,
        print_fn: Callable[[str], Any] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Any = None,
    ) -> None:
        """Print the layers with the shapes of their outputs and the numbers in their variables.

        Parameters
        ----------
        line_length, positions, layer_range
            Keras', without effect.
        print_fn : callable, optional
            What gets the text; default: :func:`print`.
        expand_nested : bool
            Whether to tell the layers of models among the layers too.
        show_trainable : bool
            Whether to tell which layers are trainable.

        Examples
        --------
        >>> import mp_core as mp
        >>> model = mp.Sequential([mp.Input((4,)), mp.layers.Dense(2, name="head")], name="model")
        >>> model.summary()
        Sequential 'model'
        layer (type)  output shape  parameters
        --------------------------------------
        head (Dense)  (None, 2)             10
        <BLANKLINE>
        all parameters           10 (40.00 B)
        trainable parameters     10 (40.00 B)
        not trainable parameters 0 (0.00 B)
        """
        from mp_core.training.summary import summary_of

        (print_fn or print)(summary_of(self, self._traced(), expand_nested, show_trainable))
