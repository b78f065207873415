"""From names and folders to models; generation defaults; profiles."""
