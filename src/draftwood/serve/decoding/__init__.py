"""One thread that writes all texts: the jobs, the rows and their memory, and what is counted."""
