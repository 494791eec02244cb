"""Plaudit trains robot policies from what the camera sees."""

__version__ = "0.1.0"
