"""BART's layers, written out."""
