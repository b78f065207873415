"""Chats of several turns, compared with ``transformers``: greedy text, and the distribution of sampled text."""
