"""The loop: a robot acts, a judge looks, a learner learns and its weights go back. Classes that need no cluster."""
