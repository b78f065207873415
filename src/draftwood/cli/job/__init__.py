"""A file of lines, each answered by a text: read, decoded in batches, written, stopped and taken up again."""
