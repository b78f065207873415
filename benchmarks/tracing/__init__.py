"""Starting: seconds from nothing to the first token, and memory, each in a process of its own."""
