"""Benchmarks of block efficiency, speed and stages, against plain decoding and against ``transformers``."""
