"""The texts of several processes of Ray: with losses, as a file, with clients that leave, and through the proxy."""
