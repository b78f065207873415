"""Measures which drafter, verifier and shape are fastest for a pair on this machine, and keeps them in a profile."""
