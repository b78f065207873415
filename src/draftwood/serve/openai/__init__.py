"""OpenAI's interface: from the body of a request to what is written, and from its texts to responses."""
