"""Training of drafters of hidden states (`drafter`, `adapt`), and chats of a model for that (`chats`).

This module imports nothing heavy.
"""
