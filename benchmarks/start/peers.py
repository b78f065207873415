"""The target's weights in the files of other programs, for their starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import genai, llama_cpp
from benchmarks.start.config import PEERS
from draftwood.core.settings import LoadOptions
from draftwood.loading.models import load_tokenizer


def files(system: str, job: Mapping[str, Any], folder: Path, model: Any) -> dict[str, Any]:
    """Convert the target for a system.

    Args:
        job: ``target``, ``dtype`` and ``prompt``, as in :func:`benchmarks.start.process.started`.
        folder: for the files.
        model: the target, a model of ``transformers``.

    Returns:
        What its process needs: for ``transformers`` the folder of a ``target`` that is a GGUF file; for others ``model``, a
        folder or file; ``options``, keyword arguments of its loader; ``ids``, the prompt; and for GenAI ``scheduler``,
        settings of its scheduler. Nothing for systems that read the target itself.

    Raises:
        ConfigError: a model or number format that the system is not measured with.
        ImportError: a package is missing.
        ModelError: a model that cannot be converted.
    """
    if system == "transformers" and Path(job["target"]).is_file():
        model.save_pretrained(folder / system)
        load_tokenizer(job["target"], LoadOptions()).save_pretrained(folder / system)
        return {"target": str(folder / system)}
    if system not in PEERS:
        return {}
    ids = load_tokenizer(job["target"], LoadOptions())(job["prompt"])["input_ids"]
    if system == "genai":
        network = genai.saved(model, folder / "genai")
        return {"model": str(network), "options": genai.options(model), "scheduler": genai.SCHEDULER, "ids": ids}
    path = folder / "target.gguf"
    llama_cpp.write_gguf(model, path)
    return {"model": str(path), "options": llama_cpp.options(model, llama_cpp.kind(model)), "ids": ids}
