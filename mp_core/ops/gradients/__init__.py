"""Gradients: a rule for each operation, and the backward walk over the noted calls of a recording.

A rule (:mod:`mp_core.ops.gradients.registry`) is composed of operations, so the backward pass is recorded too.
"""
