"""Draft models that score a whole block of tokens in one forward."""
