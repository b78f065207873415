"""The three published figures, drawn as SVG from recorded rounds."""

from draftwood.trace.figures.race import draw_race
from draftwood.trace.figures.round import draw_round
from draftwood.trace.figures.specdec import draw_specdec
from draftwood.trace.figures.write import race_of, write_figures

__all__ = ["draw_race", "draw_round", "draw_specdec", "race_of", "write_figures"]
