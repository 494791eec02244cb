"""The best of N chunks, by critics: what Q-chunking trains. The config needs no torch; `build()` does."""

from plaudit.policies.qchunk.config import QChunkPolicyConfig

__all__ = ["QChunkPolicyConfig"]
