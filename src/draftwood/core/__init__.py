"""What every room speaks of: trees, rounds, log-probabilities, sampling, random numbers, settings, errors."""
