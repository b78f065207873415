"""The tensors of drafters, from their files into their modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from draftwood.core.errors import ModelError
from draftwood.loading.checkpoint import cannot_load, folder_of, refuse_gaps


def tensors_of(name: str | Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint; those of EAGLE's first layer under the name that speculators gives them."""
    from safetensors.torch import load_file

    try:
        if not Path(name).is_dir():
            from huggingface_hub import snapshot_download

            snapshot_download(str(name), allow_patterns=["config.json", "*.safetensors"])
        folder = folder_of(name)
        files = sorted(folder.glob("*.safetensors")) if folder is not None else []
        found = {tensor: value for file in files for tensor, value in load_file(file).items()}
    except Exception as error:
        raise ModelError(cannot_load("drafter", name, error)) from error
    if not found:
        raise ModelError(f"the drafter {str(name)!r} has no file *.safetensors: save its weights with safetensors first")
    return {tensor.replace("midlayer.", "layers.0.", 1): value for tensor, value in found.items()}


def fill(name: str | Path, drafter: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load all tensors; raises a ModelError, as :func:`refuse_gaps`, unless they are exactly those of the drafter."""
    own = drafter.state_dict()
    both = own.keys() & tensors.keys()
    refuse_gaps(
        name,
        {
            "missing_keys": own.keys() - tensors.keys(),
            "unexpected_keys": tensors.keys() - own.keys(),
            "mismatched_keys": [(n, tensors[n].shape, own[n].shape) for n in both if tensors[n].shape != own[n].shape],
        },
    )
    drafter.load_state_dict(tensors, assign=True)
