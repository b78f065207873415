"""The parts of ``benchmarks/gpu.py``: correctness and speed on one accelerator."""
