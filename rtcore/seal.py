"""The seal of a manifest: a hash over its own file, so that no byte of a bundle is left unprotected.

The seal is the sha256, in hexadecimal, of manifest.json as written with 64 zeros in the seal's place.
"""

from __future__ import annotations

import hashlib

import msgspec

from rtcore.manifest import Manifest

_BLANK = "0" * 64


def encode(manifest: Manifest) -> bytes:
    """The content of manifest.json, indented for people, with its seal set."""
    blank = msgspec.structs.replace(manifest, seal=_BLANK)
    content = msgspec.json.format(msgspec.json.encode(blank), indent=2) + b"\n"
    return content.replace(_field(_BLANK), _field(hashlib.sha256(content).hexdigest()), 1)


def intact(content: bytes, seal: str) -> bool:
    """Whether `content` of manifest.json, which names `seal`, is what `encode` wrote."""
    field = _field(seal)
    if len(seal) != len(_BLANK) or content.count(field) != 1:
        return False
    return hashlib.sha256(content.replace(field, _field(_BLANK))).hexdigest() == seal


def _field(seal: str) -> bytes:
    return f'"seal": "{seal}"'.encode()
