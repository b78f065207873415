"""The parts of ``benchmarks/gpu.py``: correctness, speed, a profile and training on one accelerator."""
