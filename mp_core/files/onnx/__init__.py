"""ONNX files: their messages, their tensors, and programs.

The modules of this folder need no other package. :mod:`mp_core.files.checkpoint.onnx_file` reads only the weights.
"""
