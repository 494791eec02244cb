"""Rewards learned from images: encoders, a classifier, how it is trained, measured and used."""
