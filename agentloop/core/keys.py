"""The keys of creates: a create with a known `event_id` is the Response it made before."""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

from agentloop.errors import KeyConflict


class CreateKey(Struct, frozen=True):
    """What a key was used for."""

    fingerprint: bytes
    response_id: str


def check_key(event_id: str, known: bytes, fingerprint: bytes) -> None:
    """Raises KeyConflict where a key comes again with another payload."""
    if known != fingerprint:
        raise KeyConflict(
            f"event_id {event_id!r} was used for another payload; use a new one",
            param="event_id",
        )


class CreateKeys:
    """Bounded: the keys reserved longest ago are forgotten first."""

    def __init__(self, keys_max: int = 10_000) -> None:
        self._keys: OrderedDict[str, CreateKey] = OrderedDict()
        self._keys_max = keys_max

    def find(self, event_id: str | None, fingerprint: bytes) -> str | None:
        """The id of the Response that this create made before, None if it is new.

        Raises:
            KeyConflict: the key came with another payload.
        """
        known = self._keys.get(event_id) if event_id is not None else None
        if known is None or event_id is None:
            return None
        check_key(event_id, known.fingerprint, fingerprint)
        return known.response_id

    def reserve(self, event_id: str | None, fingerprint: bytes, response_id: str) -> None:
        """This create makes this Response."""
        if event_id is None:
            return
        self._keys[event_id] = CreateKey(fingerprint, response_id)
        if len(self._keys) > self._keys_max:
            self._keys.popitem(last=False)

    def release(self, event_id: str | None) -> None:
        """The create was refused after all."""
        if event_id is not None:
            self._keys.pop(event_id, None)
