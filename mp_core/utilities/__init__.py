"""Helpers for all rooms: checks of arguments, texts, files, the registry of classes, the operating system.

It imports core only; every other room may import it.
"""
