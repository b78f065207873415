"""Causal language models on OpenVINO."""
