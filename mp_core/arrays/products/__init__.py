"""Matrix products: what an operand is, which operands multiply as they are, and how others become such."""
