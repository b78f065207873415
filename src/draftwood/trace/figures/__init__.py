"""The three published figures, drawn as SVG from recorded rounds."""

from draftwood.trace.figures.race import draw_race, race_of
from draftwood.trace.figures.round import draw_round
from draftwood.trace.figures.specdec import draw_specdec

__all__ = ["draw_race", "draw_round", "draw_specdec", "race_of"]
