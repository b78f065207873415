"""The native engine: a forward made for verification."""
