"""The server under load: speed, accounts, bad input, and texts that must not change."""
