"""Compiles the native engine where there is a compiler: into the wheel, or into the sources of an editable installation."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuild(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        spec = importlib.util.spec_from_file_location("native_build", Path(self.root, "src/draftwood/native/build.py"))
        native = importlib.util.module_from_spec(spec)  # by its path: a build has neither Draftwood nor PyTorch
        spec.loader.exec_module(native)
        self._folder = TemporaryDirectory()
        library = native.LIBRARY if version == "editable" else Path(self._folder.name, native.LIBRARY.name)
        if (reason := native.prepare(library)) is not None:
            self.app.display_warning(f"Draftwood is installed without its native engine: {reason}")
        elif version != "editable":
            platform = self.build_config.builder.get_best_matching_tag().rpartition("-")[2]
            build_data.update(pure_python=False, tag=f"py3-none-{platform}")
            build_data["force_include"][str(library)] = f"draftwood/native/{library.name}"
