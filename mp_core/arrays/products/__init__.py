"""Matrix products: operands, the compiled fast path, and the general path, which converts operands for it."""
