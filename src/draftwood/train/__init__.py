"""Training: a small language model from text (`lm`) and a drafter for it (`draft`). Nothing heavy is imported here."""
