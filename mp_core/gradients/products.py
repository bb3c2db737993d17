"""Rules of products and casts."""
