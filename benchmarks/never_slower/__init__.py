"""Is ``auto`` ever slower than plain decoding? Both write the same texts, in turn."""
