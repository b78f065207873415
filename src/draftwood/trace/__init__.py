"""What the rounds of a text did: recorded, replayed, explained and drawn."""
