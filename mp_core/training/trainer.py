"""The methods with which models are trained, evaluated and used, by Keras' names.

What they need is imported when they are called: a model that only predicts loads nothing of gradients or optimizers.
"""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from mp_core.layers import Layer
from mp_core.layers.base.configuration import is_ours
from mp_core.layers.base.losses import added_losses
from mp_core.training.measured import Measured
from mp_core.training.nesting import is_nested
from mp_core.training.planned_calls import PlannedCalls
from mp_core.utilities.tree import leaves, map_leaves

if TYPE_CHECKING:
    from mp_core.callbacks import History
    from mp_core.training.compiled import TrainingState
    from mp_core.training.models import Model

__all__ = ["Trainer"]


class Trainer(Measured):
    """What makes a layer a model; a base beside :class:`~mp_core.layers.Layer`.

    Examples
    --------
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
    _early_history: Any = None  # what a subclass calls its history before it is compiled
    stop_training = stop_evaluating = stop_predicting = False

    def _uncompile(self) -> None:
        """Forget what was made for the layers of before."""
        if self._planned is not None:
            self._planned = None
        if self._state is not None:
            self._state = None

    def _symbolic_calls(self) -> list[tuple[Layer, Any]]:
        """Return each call of a layer with its symbolic outputs, where these are known."""
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
        """Return the outputs for all samples, computed batch by batch.

        Parameters
        ----------
        x : array-like, list or dict of them, sequence or iterable of batches
            Of batches with targets or weights, these are left aside.
        batch_size : int, optional
            Default: 32, or what divides arrays into `steps` batches. The outputs do not depend on it.
        verbose : {"auto", 0, 1, 2}
            Whether stderr says how far it is.
        steps : int, optional
            How many batches; default: all.
        callbacks : list of Callback, optional
            ``on_predict_batch_end`` gets ``{"outputs": ...}``; what sets ``model.stop_predicting`` ends the outputs.

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
        from mp_core.training.prediction import run_prediction  # inference does not load it

        return run_prediction(cast("Model", self), x, batch_size, verbose, steps, callbacks)

    def predict_on_batch(self, x: Any) -> Any:
        """Return the outputs for some samples: those of a call, by a plan from the second call with such shapes on."""
        return self._calls()(self._with_integer_inputs(x))

    def _calls(self) -> PlannedCalls:
        if self._planned is None:
            self._planned = PlannedCalls(cast(Any, self))
        return self._planned

    def _with_integer_inputs(self, x: Any) -> Any:
        """Return the inputs; floats become integers where an Input is of integers or an Embedding reads it."""
        return getattr(self, "whole", lambda inputs: inputs)(x)

    # ---- training

    def in_parts(self) -> Any:
        """Return what computes parts of a batch on another machine (:class:`mp_core.interop.dask.Workers`)."""
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
        """Say how the model is trained.

        Trained are the weights that are trainable at the first step; after a change of ``trainable``, compile again.

        Parameters
        ----------
        optimizer : str, dict or Optimizer
            If the policy of the model is ``mixed_float16``, it is wrapped in a
            :class:`~mp_core.optimizers.LossScaleOptimizer`, unless `auto_scale_loss` is False or it is one.
        loss : str, callable or Loss, or list or dict of them, optional
            One for all outputs, or arranged as they are, inside each other too, or by their names. None: an output has
            no loss. ``"crossentropy"`` is that of the kind of the targets.
        loss_weights : list or dict of float, optional
            Arranged as the losses.
        metrics, weighted_metrics : list of str, callable or Metric, or list or dict of lists, optional
            ``"accuracy"`` and ``"crossentropy"`` mean those of the kind of the targets. Only `weighted_metrics` count
            samples by their weights.
        run_eagerly, steps_per_execution, jit_compile
            Keras', without effect: a step is recorded once, and run by compiled code. A step that no plan can repeat
            (a layer counts in integers, or decides by the value of a variable) runs call by call, with the same bits.
        auto_scale_loss : bool

        Raises
        ------
        TypeError, ValueError
            An argument is not as above, or a name is that of no optimizer, loss or metric. The model is as before.

        Examples
        --------
        >>> import mp_core as mp
        >>> model = mp.Sequential([mp.Input((4,)), mp.layers.Dense(2)], dtype="mixed_float16")
        >>> model.compile("sgd", "mse", metrics=["mae"])
        >>> type(model.optimizer).__name__
        'LossScaleOptimizer'
        """
        from mp_core.training.compiled import make_training_state  # inference does not load it

        given = {"loss": loss, "loss_weights": loss_weights, "metrics": metrics, "weighted_metrics": weighted_metrics}
        options = {"run_eagerly": run_eagerly, "steps_per_execution": steps_per_execution, "jit_compile": jit_compile}
        history = self.history
        self._calls()  # an attribute that the first `predict` added would let the step be recorded anew
        self._state = make_training_state(cast("Model", self), optimizer, given, options, auto_scale_loss)
        self._state.history = history

    @property
    def _training_state(self) -> "TrainingState":
        if self._state is None:
            raise ValueError(f"call `compile` before: '{cast(Any, self).name}' has no optimizer, loss or metrics")
        return self._state

    @property
    def compiled(self) -> bool:
        """Whether :meth:`compile` was called."""
        return self._state is not None

    @property
    def optimizer(self) -> Any:
        """The optimizer, None before :meth:`compile`."""
        return None if self._state is None else self._state.optimizer

    @property
    def history(self) -> Any:
        """The History of the last :meth:`fit`, None before. No attribute of a layer: plans depend on these."""
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
        """Train the model, and return the History of its loss and metrics.

        Parameters
        ----------
        x : array-like, list or dict of them, sequence or iterable of batches
            A batch is ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.
        y : array-like, or list or dict of them, optional
            Targets, beside arrays. Those of an output without a loss may be None.
        batch_size : int, optional
            Default: 32, or what divides arrays into `steps_per_epoch` batches. The last batch may be shorter.
        epochs : int
            The number of the last epoch, counted from 1.
        verbose : {"auto", 0, 1, 2}
            0: nothing. Otherwise a line for each epoch; "auto" and 1 show a bar of batches too where a person watches.
        callbacks : list of Callback, optional
        validation_split : float
            The share of samples at the end that are not trained with, but evaluated after epochs.
        validation_data : tuple or iterable, optional
            ``(x, y)`` or ``(x, y, sample_weight)``, or batches, which are evaluated after epochs. Those of a generator
            are kept in memory, so that each epoch is evaluated with the same ones.
        shuffle : bool
            Whether each epoch has an order of its own: it depends on the seed of :func:`mp_core.random.set_seed`, on
            the number of the epoch and of samples, and on nothing else.
        class_weight : dict of int and float, optional
            The weight of the samples of each class.
        sample_weight : array-like, or list or dict of them, optional
        initial_epoch : int
            From where epochs are counted.
        steps_per_epoch, validation_steps : int, optional
            How many batches; default: all.
        validation_batch_size : int, optional
            Default: `batch_size`.
        validation_freq : int, or list of int
            After every how many epochs, or after which ones.
        passes : int
            In how many passes a batch is computed, at most: each needs memory for its own samples only, and the weights
            have the bits of one pass. A pass has whole K blocks of every sum over samples: 1024 samples of a dense
            network (2048 in bfloat16), fewer of one with many places per sample.
        cluster : mp_core.interop.dask.Workers, optional
            What computes the passes on other machines, all but the last one; the weights have the same bits.

        Returns
        -------
        History
            Its attribute ``history`` has a list for each name in the logs.

        Raises
        ------
        TypeError, ValueError
            The model is not compiled, the data are damaged or do not fit the model, its loss or one another. A step
            that fails changes no weight.

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
            How many batches; default: all, or those until a callback sets ``model.stop_evaluating``.
        return_dict : bool
            Whether to return a dictionary by names, rather than the list of :attr:`metrics_names`, or the loss alone.

        Raises
        ------
        TypeError, ValueError
            As for :meth:`fit`.
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
        """Move the weights by the gradients of one batch, and return its loss and metrics; arguments as in :meth:`fit`.

        The means begin anew, as in Keras.
        """
        from mp_core.training.batches import batch_parts, one_batch  # inference does not load it

        self._training_state.use_passes(passes)
        self.reset_metrics()
        return _results(self.train_step(batch_parts(one_batch(x, y, sample_weight, class_weight))), return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """Return the loss and the metrics of one batch: the means begin anew; arguments as in :meth:`fit`."""
        from mp_core.training.batches import batch_parts, one_batch  # inference does not load it

        self.reset_metrics()
        return _results(self.test_step(batch_parts(one_batch(x, y, sample_weight, None))), return_dict)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train with one batch ``(x, y, sample_weight)``, and return the means so far: a subclass may do it otherwise.

        Such a subclass computes gradients by :func:`mp_core.value_and_grad`, and calls ``self.optimizer.apply``.
        Then it counts with :attr:`metrics`: see there.
        """
        return self.compute_metrics(*self._training_state.train(data))

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluate one batch ``(x, y, sample_weight)``, and return the means so far."""
        return self.compute_metrics(*self._training_state.test(data))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the loss of a batch: those of the outputs, of regularizers and of ``add_loss``; None without any.

        If `x` is given and a layer makes a mask from it, as an ``Embedding(mask_zero=True)`` does, only those elements
        of an output count that its mask keeps.

        A subclass may compute another one, of operations of mp_core, so that it is recorded.
        """
        masks = None if x is None else self._training_state.masks_of(x)
        return self._training_state.loss_of(y, y_pred, sample_weight, self.losses, masks)

    @property
    def losses(self) -> list[Any]:
        """What regularizers say of the weights, and what layers have added by ``add_loss`` in the call under way."""
        return [*cast(Any, super()).losses, *(added_losses.get() or ())]

    def _has_own(self, method: str) -> bool:
        """Whether a subclass has a method of its own in the place of one of these."""
        return getattr(type(self), method) is not getattr(Trainer, method)

    def _wrapped_optimizer(self, optimizer: Any, auto_scale_loss: bool) -> Any:
        """Return the optimizer with which the model trains under its policy."""
        from mp_core.optimizers import wrap_optimizer  # inference does not load it

        return wrap_optimizer(optimizer, cast(Any, self).dtype_policy, auto_scale_loss)

    def _first_sample(self, x: Any) -> Any:
        """Return the first sample of a batch, as a batch; all of it if a layer keeps states of so many samples."""
        if any(getattr(layer, "stateful", False) for layer in cast(Any, self).flatten()):
            return x
        return map_leaves(lambda array: array[:1], x)

    def _output_names(self, outputs: Any) -> list[str]:
        """Return a name for each output."""
        if isinstance(outputs, dict) and not is_nested(outputs):
            return list(outputs)
        return [f"output_{number}" for number, _ in enumerate(leaves(outputs), 1)]

    # ---- files

    def get_compile_config(self) -> dict[str, Any]:
        """Return the arguments of :meth:`compile`, with the optimizer that was given; an empty dict before."""
        return {} if self._state is None else self._state.get_config()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile the model by what :meth:`get_compile_config` returned, or that of Keras.

        A class with a ``compile`` of its own needs both methods too; without them there is a warning, as in Keras.

        Raises
        ------
        ValueError
            It names an optimizer, a loss or a metric that does not exist here.
        """
        if not is_ours(type(self).compile):
            need = "a `compile` of one's own needs a `get_compile_config` and a `compile_from_config` too"
            warnings.warn(f"'{cast(Any, self).name}' is not compiled: {need}", stacklevel=2)
            return
        names = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics", "auto_scale_loss")
        self.compile(**{name: config[name] for name in names if config.get(name) is not None})

    def save(self, filepath: Any, overwrite: bool = True, include_optimizer: bool = True) -> None:
        """Write the model, its weights and what it was compiled with into a ``.keras`` file, which Keras opens too.

        :func:`mp_core.load_model` reads it. The file is replaced in one step, when the new one is whole. A model that
        is not built has no weights there. A class of your own whose constructor takes other things than plain values
        needs ``get_config`` and ``from_config``.

        Parameters
        ----------
        filepath : str or os.PathLike
            It ends in ``.keras``.
        overwrite : bool
            Whether to replace a file.
        include_optimizer : bool
            Whether to write what training needs to go on: the optimizer's variables, and both matrices of LoRA.

        Raises
        ------
        FileExistsError, NotImplementedError, TypeError, ValueError
            There is such a file, and `overwrite` is False; a configuration cannot have an argument of a class of your
            own; or `filepath` ends otherwise.
        """
        from mp_core.training.archive import save_model  # inference does not load it

        save_model(cast("Model", self), filepath, overwrite, include_optimizer)

    def to_json(self, **kwargs: Any) -> str:
        """Return the model without its weights as JSON, which Keras and :func:`mp_core.models.model_from_json` read.

        Functions and classes of your own must be registered, or given as ``custom_objects``. `kwargs` are those of
        :func:`json.dumps`, such as ``indent``.
        """
        import json

        from mp_core.training.archive import entry_of  # inference does not load it

        return json.dumps(entry_of(cast("Model", self)), **kwargs)

    def save_weights(self, filepath: Any, overwrite: bool = True) -> None:
        """Write the weights into a ``.weights.h5`` file, which Keras reads too; arguments and errors are of `save`."""
        from mp_core.training.archive import save_weights  # inference does not load it

        save_weights(cast("Model", self), filepath, overwrite)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False) -> None:
        """Assign the weights of a ``.weights.h5`` file, or of a ``.keras`` file; those of Keras included.

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
        from mp_core.training.archive import load_weights  # inference does not load it

        load_weights(cast("Model", self), filepath, skip_mismatch)

    def save_training_state(self, filepath: Any) -> None:
        """Write all that training depends on into one file: it appears whole or not at all.

        That is: weights, the optimizer's variables with the loss scale, the states of random numbers, the seed of the
        order of samples, means of metrics, the place in the epochs, and within :meth:`fit` the states of callbacks.

        Raises
        ------
        ValueError
            The model is not compiled, or not built.
        """
        from mp_core.training.resume import save_state  # inference does not load it

        save_state(cast("Model", self), filepath)

    def load_training_state(self, filepath: Any) -> None:
        """Take up what :meth:`save_training_state` wrote, before or at the begin of :meth:`fit`, which goes on there.

        Raises
        ------
        ValueError
            The model is not compiled or not built, or the file is damaged or of another model. Nothing has changed.
        """
        from mp_core.training.resume import load_state  # inference does not load it

        load_state(cast("Model", self), filepath)

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
        from mp_core.training.summary import summary_of  # inference does not load it

        (print_fn or print)(summary_of(self, self._symbolic_calls(), expand_nested, show_trainable))


def _results(logs: dict[str, Any], return_dict: bool) -> Any:
    """Return the means as a dictionary, a list, or the loss alone if there is nothing else."""
    from mp_core.training.logs import flat_logs  # inference does not load it

    logs = flat_logs(logs)
    values = list(logs.values())
    return logs if return_dict else values[0] if len(values) == 1 else values
