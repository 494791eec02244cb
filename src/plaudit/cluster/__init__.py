"""Online runs on several machines: how nodes are started, joined and checked, and where each worker runs.

Ray is imported in this package only, and in functions: importing the package does not need it.
"""
