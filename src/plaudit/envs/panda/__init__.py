"""The built-in tasks: a Panda arm of primitive shapes, stepped by MuJoCo's batch API and rendered by ray casting."""
