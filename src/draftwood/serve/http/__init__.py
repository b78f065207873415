"""What every route needs: options, errors, the log, keys, and what fields are made of."""
