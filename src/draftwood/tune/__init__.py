"""Which drafter, verifier and shape are fastest for a pair on this machine: measured once, kept in a profile."""
