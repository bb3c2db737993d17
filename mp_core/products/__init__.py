"""Matrix products: what an operand is, which ones multiply as they are, and what becomes of the others."""
