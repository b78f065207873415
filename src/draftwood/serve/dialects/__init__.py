"""Other programs' interfaces. Each one translates its requests to chats, and the answers to chats back."""
