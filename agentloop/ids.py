"""Ids: unguessable by default, reproducible under a seed.

A Response's id is drawn; the ids of its items and calls derive from it and the output index, so
a replay says the same ids again and nothing the model wrote can choose one.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b

_SUFFIX_BYTES = 16  # 128 bits: an id must not be guessable


class IdSource:
    """Draws id suffixes; with a seed, always the same ones in the same order."""

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._drawn = 0

    def draw(self, prefix: str) -> str:
        """A new id `prefix_<32 hex digits>`."""
        self._drawn += 1
        if self._seed is None:
            return f"{prefix}_{secrets.token_hex(_SUFFIX_BYTES)}"
        source = f"{self._seed}:{self._drawn}".encode()
        return f"{prefix}_{blake2b(source, digest_size=_SUFFIX_BYTES).hexdigest()}"


def derive(prefix: str, response_id: str, output_index: int) -> str:
    """The id of an item or call: `prefix_<the Response's suffix>_<output index>`."""
    return f"{prefix}_{response_id.partition('_')[2]}_{output_index}"
