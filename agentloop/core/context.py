"""The context: items and their tokens so far, as a persistent list.

Extending costs the new part only, whatever the length; a fork shares everything before it and
cannot change its parent. Sampled ids are kept as they were sampled, never re-made from parsed
items: a parsed call rendered again need not give the same tokens.

    (empty) ◄── [input] ◄── [turn 1] ◄── [output a, output b] ◄── [turn 2] ◄── …
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from msgspec import Struct

from agentloop.engine.api import TokenIds
from agentloop.wire.items import AnyItem, is_model_output


class Entry(Struct, frozen=True):
    """An item and its rendered tokens; a search's result is tokens only."""

    item: AnyItem | None
    ids: TokenIds[int]


class Context:
    """One node of the list; it stands for everything up to itself.

    Attributes:
        token_count: tokens up to and including this node.
        turn_count: model turns so far; it numbers the next turn's script.
    """

    __slots__ = ("_ids", "_items", "_parent", "token_count", "turn_count")

    def __init__(
        self, parent: Context | None, items: Sequence[AnyItem], ids: TokenIds[int], turns: int
    ) -> None:
        self._parent = parent
        self._items = items
        self._ids = ids
        self.token_count: int = len(ids) + (parent.token_count if parent else 0)
        self.turn_count: int = turns + (parent.turn_count if parent else 0)

    def extend(self, items: Sequence[AnyItem], ids: TokenIds[int], turns: int = 0) -> Context:
        """A context with these items and ids after this one's. `turns` counts model turns."""
        return Context(self, items, ids, turns)

    def ids_from(self, start: int) -> TokenIds[int]:
        """The ids at `start` and after it; costs only the nodes they lie in."""
        chunks: list[TokenIds[int]] = []
        node: Context | None = self
        while node is not None and node.token_count > start:
            skipped = start - (node.token_count - len(node._ids))
            chunks.append(node._ids[skipped:] if skipped > 0 else node._ids)
            node = node._parent
        joined = array("I")
        for chunk in reversed(chunks):
            joined.extend(chunk)
        return joined

    def items(self) -> list[AnyItem]:
        """All items, oldest first."""
        batches = [node._items for node in self._nodes()]
        return [item for batch in reversed(batches) for item in batch]

    def _nodes(self) -> Iterator[Context]:
        node: Context | None = self
        while node is not None:
            yield node
            node = node._parent


EMPTY = Context(None, (), array("I"), 0)


def count_turns(items: Sequence[AnyItem]) -> int:
    """Model turns in a client's own history: its maximal runs of model-output items."""
    flags = [is_model_output(item) for item in items]
    return sum(now and not before for before, now in zip([False, *flags], flags, strict=False))
