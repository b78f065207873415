"""The CPU build is named first, the package says all of its names, and an sdist holds what the README runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import draftwood

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_cpu_build_of_pytorch_is_named_before_the_first_pip_command() -> None:
    install = README.split("## Install\n")[1]
    assert 0 <= install.index("CPU build of PyTorch") < install.index("pip install .")


def test_hf_is_one_of_the_names_of_the_package() -> None:
    assert "hf" in draftwood.__all__
    assert "hf" in dir(draftwood)


def test_an_sdist_holds_every_folder_and_script_that_the_readme_names() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = {path.strip("/") for path in settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    named = set(re.findall(r"\b(scripts|examples|docs|benchmarks|tests|src)/", README))
    assert {"scripts", "examples", "docs"} <= named
    assert named <= included
    for script in re.findall(r"scripts/\w+", README):
        assert (ROOT / script).is_file()
