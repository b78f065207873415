"""Is the output exact? A report that anyone can run on any pair, method and setting."""
