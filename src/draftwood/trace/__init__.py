"""What the rounds of a text did: recorded, explained and drawn."""
