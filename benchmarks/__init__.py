"""Measuring: block efficiency, speed and where the time goes, against plain decoding and against ``transformers``."""
