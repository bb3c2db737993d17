"""Helpers for all packages: checks of arguments, texts, files, the operating system."""
