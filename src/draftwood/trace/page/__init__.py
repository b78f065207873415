"""The page that plays recorded texts: one HTML file that reads nothing from a network."""

from draftwood.trace.page.write import page, write_page

__all__ = ["page", "write_page"]
