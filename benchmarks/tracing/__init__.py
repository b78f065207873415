"""What traces cost, off and on, in processor time."""
