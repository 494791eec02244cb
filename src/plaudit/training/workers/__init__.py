"""The workers of an online run: classes that know nothing of Ray. See cluster/ for their actors."""
