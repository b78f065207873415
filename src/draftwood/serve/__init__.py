"""The server: OpenAI's interface over rows that come and go (extra ``serve``)."""
