"""What every room needs and no operation computes: arguments, text, files, the registry of classes, the system.

It imports core only; every other room may import it.
"""
