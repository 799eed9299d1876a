"""Tenants: on whose behalf a request came, as a proxy in front of the server says it."""

from __future__ import annotations

from aiohttp import web

from ops.errors import InvalidRequest

MAX_NAME = 256


def tenant_of(request: web.Request, header: str | None) -> str:
    """The tenant that a header names; all requests without one are of the tenant without a name.

    header: its name, None where tenants are not told apart. Raises InvalidRequest for a name that is too long
    or holds anything but printable ASCII.
    """
    name = "" if header is None else request.headers.get(header, "")
    if len(name) > MAX_NAME:
        raise InvalidRequest(
            f"The header {header} has {len(name)} characters.", why=f"A tenant's name has {MAX_NAME} at most."
        )
    if not (name.isascii() and (name.isprintable() or not name)):
        raise InvalidRequest(f"The header {header} names no tenant.", why="A name is printable ASCII.")
    return name


def salted(tenant: str, salt: str) -> str:
    """A cache salt that no other tenant can ask for: the length tells where the name ends."""
    return f"{len(tenant)}:{tenant}{salt}" if tenant or salt else ""
