"""Training of language and translation models (`lm`, `translator`) and of their drafters (`draft`, `spec_drafter`).

This module imports nothing heavy.
"""
