"""Runners: a network and its cache, for target and draft models.

``protocols`` says what a runner does; the packages above import little else. ``slots`` keeps the slot tables of the rows,
``cache`` the keys and values of PyTorch. Runners are in ``torch_runner``, ``native/``, ``seq2seq/`` (encoder-decoder
models) and ``blocks/`` (drafters that score a whole block); ``factory`` chooses among them.
"""
