"""What every room needs and no operation computes: arguments, text, files, the operating system."""
