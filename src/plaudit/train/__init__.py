"""Training runs: from a config to a folder with a policy, its curve and everything needed to go on."""
