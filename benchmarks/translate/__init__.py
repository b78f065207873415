"""Translation by all systems side by side, in one run on the same weights: speed, quality, and equality of the texts."""
