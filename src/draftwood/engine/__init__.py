"""The decode loop, its output, and the methods that it runs."""
