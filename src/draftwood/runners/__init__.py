"""Networks and their memory."""
