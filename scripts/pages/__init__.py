"""Draws the figures and writes the result pages of the documentation: ``python -m scripts.pages``."""
