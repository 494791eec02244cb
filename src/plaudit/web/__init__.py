"""The pages of `plaudit serve`: episodes, labeling, runs and judges in a browser."""
