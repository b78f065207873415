"""Drafters that score a whole block of future tokens."""
