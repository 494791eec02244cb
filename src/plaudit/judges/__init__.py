"""Judges, which say what succeeded: a simulator's flag, a classifier, a vision-language model, a person."""
