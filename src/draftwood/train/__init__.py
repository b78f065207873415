"""Training of language and translation models (`lm`, `translator`) and of drafters for them (`draft`, `spec_drafter`).

Nothing heavy is imported here.
"""
