"""Exactness reports: whether the output follows the target's distribution, for any pair, method and setting."""
