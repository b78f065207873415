"""The tiny pair of the command line, and the way to call it."""

from tests.cli.conftest import environment, models, pair, prompts, run

__all__ = ["environment", "models", "pair", "prompts", "run"]
