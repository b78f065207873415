"""The machine: its processor, memory, free cores and threads."""
