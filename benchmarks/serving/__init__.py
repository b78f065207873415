"""The server under load: speed, accounts, bad input, distribution, and texts that must not change."""
