"""Shared types of all rooms: trees, rounds, log-probabilities, sampling, random numbers, settings, errors."""
