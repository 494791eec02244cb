"""The built-in tasks: a Panda arm of primitives, MuJoCo's own batch, a camera made of rays."""
