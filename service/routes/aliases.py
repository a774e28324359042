"""Aliases: all actions of one call, or none of them."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from service.alias_changes import AliasChange
from service.answers import DONE, ok, read_json
from service.errors import MalformedError
from service.names import check_name
from service.routes.context import parts, started

router = APIRouter()


class CreateAlias(msgspec.Struct):
    """Point an alias at a collection; an existing alias is moved."""

    collection_name: str
    alias_name: str


class DeleteAlias(msgspec.Struct):
    """Forget an alias; one that is not there is no error."""

    alias_name: str


class RenameAlias(msgspec.Struct):
    """Give an alias another name."""

    old_alias_name: str
    new_alias_name: str


class Action(msgspec.Struct, forbid_unknown_fields=True):
    """Exactly one of the three."""

    create_alias: CreateAlias | None = None
    delete_alias: DeleteAlias | None = None
    rename_alias: RenameAlias | None = None


class ActionsBody(msgspec.Struct):
    """POST /collections/aliases."""

    actions: list[Action]


@router.post("/collections/aliases")
async def change_aliases(request: Request) -> Response:
    """All actions in their order, atomically."""
    body = await read_json(request, ActionsBody)
    changes = [_change_of(action, f"$.actions[{position}]") for position, action in enumerate(body.actions)]
    await asyncio.to_thread(parts(request).engine.set_aliases, changes)
    return ok(DONE, started(request))


@router.get("/aliases")
async def list_aliases(request: Request) -> Response:
    """All aliases."""
    return ok({"aliases": _described(parts(request).engine.aliases())}, started(request))


@router.get("/collections/{collection}/aliases")
async def aliases_of(request: Request, collection: str) -> Response:
    """Aliases of one collection."""
    engine = parts(request).engine
    name = engine.find(collection).record.name
    return ok({"aliases": _described({a: c for a, c in engine.aliases().items() if c == name})}, started(request))


def _described(aliases: dict[str, str]) -> list[dict[str, str]]:
    return [{"alias_name": alias, "collection_name": name} for alias, name in sorted(aliases.items())]


def _change_of(action: Action, path: str) -> AliasChange:
    given = [one for one in (action.create_alias, action.delete_alias, action.rename_alias) if one is not None]
    if len(given) != 1:
        raise MalformedError(f"{path} needs exactly one of create_alias, delete_alias, rename_alias.")
    one = given[0]
    if isinstance(one, CreateAlias):
        return AliasChange(alias=check_name(one.alias_name, "alias"), collection=one.collection_name)
    if isinstance(one, DeleteAlias):
        return AliasChange(alias=one.alias_name)
    return AliasChange(alias=check_name(one.new_alias_name, "alias"), old_alias=one.old_alias_name)
