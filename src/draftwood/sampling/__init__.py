"""From scores to the sampled distribution of a row."""
