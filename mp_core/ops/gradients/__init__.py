"""Gradients of operations: a rule for each of them, and the walk backwards over what a recording has noted.

A rule (:mod:`mp_core.ops.gradients.registry`) is a function made of operations, so that the backward pass is recorded
too.
"""
