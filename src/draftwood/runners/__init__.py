"""Runners: a network and its memory of the rows' texts, for target and draft models.

``protocols`` says what a runner does; rooms above this one know only that. ``slots`` keeps the rows' slot tables, ``cache``
PyTorch's keys and values. Runners are in ``torch_runner``, ``openvino/``, ``seq2seq/`` (encoder-decoder models) and
``blocks/`` (drafters that score a whole block); ``factory`` chooses among them.
"""
