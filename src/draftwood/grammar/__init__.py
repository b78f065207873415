"""Grammars: what a text must follow."""
