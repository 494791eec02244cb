"""Judges of stored episodes: a simulator's flag, a classifier, a vision-language model, a person."""
