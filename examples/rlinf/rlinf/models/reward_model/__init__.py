"""See rlinf/__init__.py."""
