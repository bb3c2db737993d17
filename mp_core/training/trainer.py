"""The methods of Keras' models that train, evaluate, predict and save.

They import what they need when they are called: a model that only predicts loads neither gradients nor optimizers.
"""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from mp_core.layers import Layer
from mp_core.layers.base.configuration import is_ours
from mp_core.layers.base.losses import added_losses
from mp_core.layers.base.state import flat_layers
from mp_core.training.measured import Measured
from mp_core.training.nesting import is_nested
from mp_core.training.planned_calls import PlannedCalls
from mp_core.utilities.tree import leaves, map_leaves

if TYPE_CHECKING:
    from mp_core.training.callbacks import History
    from mp_core.training.models import Model
    from mp_core.training.state import TrainingState

__all__ = ["Trainer"]


class Trainer(Measured):
    """Mixin that turns a :class:`~mp_core.layers.Layer` into a model.

    >>> import numpy as np
    >>> import mp_core as mp
    >>> class Slope(Trainer, mp.layers.Layer):
    ...     def build(self, input_shape):
    ...         self.slope = self.add_weight((), "zeros", name="slope")
    ...     def call(self, inputs):
    ...         return inputs * self.slope
    >>> model = Slope()
    >>> model.compile(mp.optimizers.SGD(0.5), "mse")
    >>> x = np.float32([[1.0]])
    >>> history = model.fit(x, 3 * x, epochs=10, verbose=0)
    >>> float(model.slope)
    3.0
    """

    _planned: PlannedCalls | None = None
    _state: "TrainingState | None" = None
    _early_history: Any = None  # `history` if it is set before `compile`
    stop_training = stop_evaluating = stop_predicting = False

    def _uncompile(self) -> None:
        """Drop plans and training state that belong to the old layers."""
        if self._planned is not None:
            self._planned = None
        if self._state is not None:
            self._state = None

    def _symbolic_calls(self) -> list[tuple[Layer, Any]]:
        """Return each layer call with its symbolic outputs; empty if they are unknown."""
        return []

    # ---- use

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Return the outputs for all samples, computed batch by batch, arranged as the outputs of the model.

        Parameters
        ----------
        x : array-like, list or dict of them, sequence or iterable of batches
            Without NaN. Targets and weights of batches are ignored.
        batch_size : int, optional
            Default: 32; with `steps`, ceil(samples / `steps`). The outputs do not depend on it.
        verbose : {"auto", 0, 1, 2}
            0: show no progress on stderr.
        steps : int, optional
            Number of batches; default: all.
        callbacks : list of Callback, optional
            ``on_predict_batch_end`` gets ``{"outputs": ...}``. A callback may set ``model.stop_predicting``.

        Examples
        --------
        >>> import numpy as np
        >>> import mp_core as mp
        >>> model = mp.Sequential([mp.Input((4,)), mp.layers.Dense(2)])
        >>> model.predict(np.ones((100, 4)), verbose=0).shape
        (100, 2)
        """
        from mp_core.training.prediction import run_prediction  # inference does not load it

        return run_prediction(cast("Model", self), x, batch_size, verbose, steps, callbacks)

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs of one batch; from the second call with the same shapes on, a plan computes them."""
        return self._calls()(self._with_integer_inputs(x))

    def _calls(self) -> PlannedCalls:
        if self._planned is None:
            self._planned = PlannedCalls(cast(Any, self))
        return self._planned

    def _with_integer_inputs(self, x: Any) -> Any:
        """Return the inputs; floats are converted to integers if an integer Input or an Embedding reads them."""
        return x

    # ---- training

    def in_parts(self) -> Any:
        """Return the object with which :class:`mp_core.interop.dask.Workers` compute parts of a batch."""
        from mp_core.training.batch_passes import BatchPasses  # inference does not load it

        return BatchPasses(self._training_state, cast(Any, self).trainable_variables).gradients

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: Any = "auto",
        auto_scale_loss: bool = True,
    ) -> None:
        """Configure the training: optimizer, losses and metrics.

        The first step fixes which weights are trained. After you change ``trainable``, compile again. If an argument is
        invalid, the model is unchanged.

        Parameters
        ----------
        optimizer : str, dict or Optimizer
            Under ``mixed_float16`` it is wrapped in a :class:`~mp_core.optimizers.LossScaleOptimizer`, unless it is one
            or `auto_scale_loss` is False.
        loss : str, callable or Loss, or list or dict of them, optional
            One for all outputs, or arranged as the (nested) outputs, or a dict with their names. None: an output has no
            loss. ``"crossentropy"`` selects binary, categorical or sparse categorical by the targets.
        loss_weights : list or dict of float, optional
            Arranged as the losses.
        metrics, weighted_metrics : list of str, callable or Metric, or list or dict of lists, optional
            ``"accuracy"`` and ``"crossentropy"`` are selected by the targets too. Only `weighted_metrics` use sample
            weights.
        run_eagerly, steps_per_execution, jit_compile
            Without effect: a step is recorded once and run by compiled code. A step that no plan can repeat (a layer
            counts in integers, or branches on the value of a variable) runs without one, with the same bits.
        auto_scale_loss : bool

        Examples
        --------
        >>> import mp_core as mp
        >>> model = mp.Sequential([mp.Input((4,)), mp.layers.Dense(2)], dtype="mixed_float16")
        >>> model.compile("sgd", "mse", metrics=["mae"])
        >>> type(model.optimizer).__name__
        'LossScaleOptimizer'
        """
        from mp_core.training.state import make_training_state  # inference does not load it

        given = {"loss": loss, "loss_weights": loss_weights, "metrics": metrics, "weighted_metrics": weighted_metrics}
        options = {"run_eagerly": run_eagerly, "steps_per_execution": steps_per_execution, "jit_compile": jit_compile}
        history = self.history
        self._calls()  # set the attribute now: if the first `predict` added it, the step would be recorded again
        self._state = make_training_state(cast("Model", self), optimizer, given, options, auto_scale_loss)
        self._state.history = history

    @property
    def _training_state(self) -> "TrainingState":
        if self._state is None:
            raise ValueError(f"call `compile` first: '{cast(Any, self).name}' has no optimizer, loss or metrics")
        return self._state

    @property
    def compiled(self) -> bool:
        """Whether :meth:`compile` was called."""
        return self._state is not None

    @property
    def optimizer(self) -> Any:
        """The optimizer; None before :meth:`compile`."""
        return None if self._state is None else self._state.optimizer

    @property
    def history(self) -> Any:
        """The History of the last :meth:`fit`; None before. Not a plain attribute, because plans depend on these."""
        return self._early_history if self._state is None else self._state.history

    @history.setter
    def history(self, value: Any) -> None:
        if self._state is None:
            self._early_history = value
        else:
            self._state.history = value

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        passes: int = 1,
        cluster: Any = None,
    ) -> "History":
        """Train the model, and return its :class:`History`: the values of each epoch by their name in the logs.

        A step that fails, because data do not fit the model or contain NaN, changes no weight.

        Parameters
        ----------
        x : array-like, list or dict of them, sequence or iterable of batches
            A batch is ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.
        y : array-like, or list or dict of them, optional
            Targets, if `x` is arrays. None for outputs without a loss.
        batch_size : int, optional
            Default: 32; with `steps_per_epoch`, ceil(samples / `steps_per_epoch`). The last batch may be shorter.
        epochs : int
            The number of the last epoch, counted from 1.
        verbose : {"auto", 0, 1, 2}
            0: silent. 2: one line per epoch. "auto", 1: on a terminal also a progress bar of batches.
        callbacks : list of Callback, optional
        validation_split : float
            Fraction of the samples, taken from the end, that are used for validation instead of training.
        validation_data : tuple or iterable, optional
            ``(x, y)``, ``(x, y, sample_weight)`` or batches, evaluated after epochs. Batches of a generator are kept in
            memory, so that each epoch is validated with the same batches.
        shuffle : bool
            Whether to permute the samples in each epoch. The order depends only on the seed of
            :func:`mp_core.random.set_seed`, the number of the epoch and the number of samples.
        class_weight : dict of int and float, optional
            Class number -> weight of its samples.
        sample_weight : array-like, or list or dict of them, optional
        initial_epoch : int
            Index of the first epoch, counted from 0.
        steps_per_epoch, validation_steps : int, optional
            Number of batches; default: all.
        validation_batch_size : int, optional
            Default: `batch_size`.
        validation_freq : int, or list of int
            Validate after every n epochs, or after the listed epochs, counted from 1.
        passes : int
            Compute a batch in at most this many passes: each allocates memory for its own samples only, and the weights
            have the same bits. The smallest pass is a K block of sums over samples: 1024 samples of a dense network
            (2048 in bfloat16), fewer if a sample has many positions.
        cluster : mp_core.interop.dask.Workers, optional
            Computes all passes but the last on other machines. The weights have the same bits.

        Examples
        --------
        >>> import numpy as np
        >>> import mp_core as mp
        >>> x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(-1, 1)
        >>> model = mp.Sequential([mp.Input((1,)), mp.layers.Dense(1)])
        >>> model.compile(mp.optimizers.SGD(0.1), "mse")
        >>> history = model.fit(x, 2 * x + 1, epochs=50, verbose=0)
        >>> history.history["loss"][-1] < 1e-4
        True
        """
        from mp_core.training.fitting import fit  # inference does not load it

        return fit(
            cast("Model", self), (x, y, sample_weight), batch_size, class_weight, shuffle, (passes, cluster),
            {"epochs": epochs, "verbose": verbose, "callbacks": callbacks, "initial_epoch": initial_epoch,
             "steps_per_epoch": steps_per_epoch, "validation_freq": validation_freq},
            {"split": validation_split, "data": validation_data, "steps": validation_steps,
             "batch_size": validation_batch_size or batch_size},
        )  # fmt: skip

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Return the loss and the metrics of some data.

        Parameters
        ----------
        x, y, batch_size, verbose, sample_weight, callbacks
            As in :meth:`fit`.
        steps : int, optional
            Number of batches; default: all. A callback may set ``model.stop_evaluating`` to stop earlier.
        return_dict : bool
            True: return name -> value. False: return a list ordered as :attr:`metrics_names`, or the loss if it is all.
        """
        from mp_core.training.batches import batches_of  # inference does not load it
        from mp_core.training.loop import run_evaluation  # inference does not load it

        batches = batches_of(x, y, sample_weight, batch_size=batch_size, steps=steps)
        return _results(run_evaluation(cast("Model", self), batches, verbose, steps, callbacks), return_dict)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
        passes: int = 1,
    ) -> Any:
        """Train with one batch, and return its loss and metrics; arguments as in :meth:`fit`. Resets means first."""
        from mp_core.training.batches import batch_parts, one_batch  # inference does not load it

        self._training_state.use_passes(passes)
        self.reset_metrics()
        return _results(self.train_step(batch_parts(one_batch(x, y, sample_weight, class_weight))), return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """Evaluate one batch, and return its loss and metrics; arguments as in :meth:`fit`. Resets the means first."""
        from mp_core.training.batches import batch_parts, one_batch  # inference does not load it

        self.reset_metrics()
        return _results(self.test_step(batch_parts(one_batch(x, y, sample_weight, None))), return_dict)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train with one batch ``(x, y, sample_weight)``, and return the means so far.

        A subclass that overrides this computes gradients with :func:`mp_core.value_and_grad`, calls
        ``self.optimizer.apply`` and updates :attr:`metrics`, which has an example.
        """
        return self.compute_metrics(*self._training_state.train(data))

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluate one batch ``(x, y, sample_weight)``, and return the means so far."""
        return self.compute_metrics(*self._training_state.test(data))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the loss of a batch: the sum over outputs, regularizers and ``add_loss``; None if there is none.

        If `x` is given and a layer makes a mask from it, such as ``Embedding(mask_zero=True)``, elements of outputs
        whose mask is False do not count.

        A subclass may override this. It must compute with operations of mp_core, so that the loss can be recorded.
        """
        masks = None if x is None else self._training_state.masks_of(x)
        return self._training_state.loss_of(y, y_pred, sample_weight, self.losses, masks)

    @property
    def losses(self) -> list[Any]:
        """The losses of regularizers, and the losses that layers added with ``add_loss`` in the current call."""
        return [*cast(Any, super()).losses, *(added_losses.get() or ())]

    def _has_own(self, method: str) -> bool:
        """Whether a subclass overrides a method of :class:`Trainer`."""
        return getattr(type(self), method) is not getattr(Trainer, method)

    def _wrapped_optimizer(self, optimizer: Any, auto_scale_loss: bool) -> Any:
        """Return the optimizer, wrapped for loss scaling if the policy of the model needs it."""
        from mp_core.training.optimizers import wrap_optimizer  # inference does not load it

        return wrap_optimizer(optimizer, cast(Any, self).dtype_policy, auto_scale_loss)

    def _first_sample(self, x: Any) -> Any:
        """Return a batch of the first sample; the whole batch if a stateful layer depends on the batch size."""
        if any(getattr(layer, "stateful", False) for layer in flat_layers(cast(Any, self))):
            return x
        return map_leaves(lambda array: array[:1], x)

    def _output_names(self, outputs: Any) -> list[str]:
        """Return a name for each output."""
        if isinstance(outputs, dict) and not is_nested(outputs):
            return list(outputs)
        return [f"output_{number}" for number, _ in enumerate(leaves(outputs), 1)]

    # ---- files

    def get_compile_config(self) -> dict[str, Any]:
        """Return the arguments of :meth:`compile`, with the user's optimizer; an empty dict if it was not called."""
        return {} if self._state is None else self._state.get_config()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile the model with a result of :meth:`get_compile_config`, of mp_core or Keras.

        A class that overrides ``compile`` must override both methods too; otherwise there is a warning, as in Keras.
        """
        if not is_ours(type(self).compile):
            need = "a class that overrides `compile` must override `get_compile_config` and `compile_from_config` too"
            warnings.warn(f"'{cast(Any, self).name}' is not compiled: {need}", stacklevel=2)
            return
        names = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics", "auto_scale_loss")
        self.compile(**{name: config[name] for name in names if config.get(name) is not None})

    def save(self, filepath: Any, overwrite: bool = True, include_optimizer: bool = True) -> None:
        """Write the model, its weights and the arguments of ``compile`` into a ``.keras`` file.

        :func:`mp_core.load_model` and Keras read it. The file is replaced in one step, after the new one is complete.
        The file of an unbuilt model has no weights. If the constructor of your class takes arguments that are not
        plain values, the class needs ``get_config`` and ``from_config``.

        Parameters
        ----------
        filepath : str or os.PathLike
            Must end in ``.keras``.
        overwrite : bool
            Whether to replace an existing file.
        include_optimizer : bool
            Whether to store what further training needs: the optimizer's variables, and both matrices of LoRA.
        """
        from mp_core.training.archive import save_model  # inference does not load it

        save_model(cast("Model", self), filepath, overwrite, include_optimizer)

    def to_json(self, **kwargs: Any) -> str:
        """Return the model without its weights as JSON; Keras and :func:`mp_core.models.model_from_json` read it.

        To read it, your own functions and classes must be registered, or passed as ``custom_objects``. `kwargs` are
        passed to :func:`json.dumps`, such as ``indent``.
        """
        import json

        from mp_core.training.archive import entry_of  # inference does not load it

        return json.dumps(entry_of(cast("Model", self)), **kwargs)

    def save_weights(self, filepath: Any, overwrite: bool = True) -> None:
        """Write the weights into a ``.weights.h5`` file, which Keras reads too; arguments as in :meth:`save`."""
        from mp_core.training.archive import save_weights  # inference does not load it

        save_weights(cast("Model", self), filepath, overwrite)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False) -> None:
        """Assign the weights of a ``.weights.h5`` or ``.keras`` file, written by mp_core or Keras.

        If the file is damaged or belongs to another model, no weight has changed. `skip_mismatch` skips layers whose
        shapes differ from the file, with a warning, instead of raising ValueError.
        """
        from mp_core.training.archive import load_weights  # inference does not load it

        load_weights(cast("Model", self), filepath, skip_mismatch)

    def save_training_state(self, filepath: Any) -> None:
        """Write the complete state of the training of a compiled and built model into one file, in one step.

        It contains weights, optimizer variables, loss scale, states of random generators, seed of the sample order,
        means of metrics, epoch and step, and, if called within :meth:`fit`, the states of callbacks.
        """
        from mp_core.training.resume import save_state  # inference does not load it

        save_state(cast("Model", self), filepath)

    def load_training_state(self, filepath: Any) -> None:
        """Restore the state of :meth:`save_training_state`, all or nothing; the next :meth:`fit` continues from there.

        Call it after :meth:`compile` and before :meth:`fit`, or in ``on_train_begin`` of a callback.
        """
        from mp_core.training.resume import load_state  # inference does not load it

        load_state(cast("Model", self), filepath)

    # ---- what it consists of

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """Return a layer of the model by its name or its index."""
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
        """Print a table of the layers: output shapes and numbers of parameters.

        Parameters
        ----------
        line_length, positions, layer_range
            Accepted for Keras, without effect.
        print_fn : callable, optional
            Called with the text; default: :func:`print`.
        expand_nested : bool
            Whether to list the layers of inner models too.
        show_trainable : bool
            Whether to add a column that says which layers are trainable.

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
        from mp_core.training.summary import summary_of  # inference does not load it

        (print_fn or print)(summary_of(self, self._symbolic_calls(), expand_nested, show_trainable))


def _results(logs: dict[str, Any], return_dict: bool) -> Any:
    """Return the means as a dictionary or a list; a list of one value is unpacked."""
    from mp_core.training.logs import flat_logs  # inference does not load it

    logs = flat_logs(logs)
    values = list(logs.values())
    return logs if return_dict else values[0] if len(values) == 1 else values
