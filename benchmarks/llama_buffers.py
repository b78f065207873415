"""llama.cpp without the repacked weights that crash it on processors with AMX."""

from __future__ import annotations

from pathlib import Path


def keep_llama_cpp_from_crashing() -> None:
    """Switch the extra weight buffers of llama-cpp-python off in this process, where the processor has AMX.

    Version 0.3.36 reads beyond its AMX buffers there and the process dies. Other processors keep all buffers.
    """
    from llama_cpp import llama_cpp

    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or "amx_tile" not in cpuinfo.read_text():
        return
    defaults = llama_cpp.llama_model_default_params

    def without_extra_buffers() -> llama_cpp.llama_model_params:
        params = defaults()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_model_default_params = without_extra_buffers
