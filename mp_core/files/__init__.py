"""File containers of text and arrays, and a registry of the classes that configurations may name. No models here."""
