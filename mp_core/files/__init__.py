"""Containers of text and arrays, and the classes that the text in them may name. This room knows no model."""
