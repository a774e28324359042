"""Changes of aliases: what one action makes of them.

AliasChange      one action
apply_change()   an action on a copy of all aliases; whoever calls keeps the copy only if every action went well
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from service.errors import ConflictError, NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasChange:
    """alias -> collection name; None deletes the alias. old_alias: a rename."""

    alias: str
    collection: str | None = None
    old_alias: str | None = None


def apply_change(change: AliasChange, aliases: dict[str, str], collections: Collection[str]) -> None:
    """Change `aliases` in place. Raises NotFoundError, ConflictError."""
    if change.old_alias is not None:
        if change.old_alias not in aliases:
            raise NotFoundError(f"Alias {change.old_alias!r} does not exist; nothing was changed.")
        target = aliases.pop(change.old_alias)
    elif change.collection is None:
        aliases.pop(change.alias, None)
        return
    else:
        target = change.collection
    if change.alias in collections:
        raise ConflictError(f"Alias {change.alias!r}: a collection has that name; nothing was changed.")
    if target not in collections:
        raise NotFoundError(f"Collection {target!r} does not exist; no alias was changed.")
    aliases[change.alias] = target
