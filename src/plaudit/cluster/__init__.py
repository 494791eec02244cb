"""Several machines as one: where each part lives, how nodes are started, joined and checked. Ray is imported here only.

Nothing imports Ray when this package is imported: `config`, `placement` and `versions` work without it, the others
import it in their functions and say which extra brings it.
"""
