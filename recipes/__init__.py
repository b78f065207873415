"""What rebuilds bundled models and is no command: it stays in a checkout."""
