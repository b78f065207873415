"""The page that plays recorded texts: one HTML file that reads nothing from a network."""
