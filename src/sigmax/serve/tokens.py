"""Who may do what: bearer tokens with roles."""

from collections.abc import Mapping
from enum import IntEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Self, final

from sigmax.errors import InvalidInputError, did_you_mean

_SHORTEST = 16  # characters of a token: shorter ones can be guessed


class Role(IntEnum):
    """What a token allows; each role includes those before it."""

    ASK = 1  # a frozen memory, which stores nothing
    SETTLE = 2  # ask a live memory, which stores every answer
    ADMINISTER = 3  # read metrics


@final
class Tokens:
    """Tokens and their roles. They are kept as digests, and compared in a time that says nothing about them.

    Args:
        roles: The role of each token. None at all: everybody may do everything.
    """

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self._roles = [(_digest(token), role) for token, role in roles.items()]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read lines of a role and a token; empty lines and lines that begin with # are left out."""
        roles: dict[str, Role] = {}
        names = {role.name.lower(): role for role in Role}
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2 or words[0] not in names:
                hint = did_you_mean(words[0], names) or f"; the roles are {', '.join(names)}"
                raise InvalidInputError(f"expected `ROLE TOKEN` in line {number} of the tokens, got another line{hint}")
            if len(words[1]) < _SHORTEST:
                raise InvalidInputError(
                    f"expected tokens of at least {_SHORTEST} characters, got {len(words[1])} in line {number}; "
                    "`openssl rand -hex 32` makes one"
                )
            roles[words[1]] = names[words[0]]
        if not roles:
            raise InvalidInputError("expected at least one token, got none; write lines of `ROLE TOKEN`")
        return cls(roles)

    def __bool__(self) -> bool:
        return bool(self._roles)

    def role(self, header: str | None) -> Role | None:
        """The role of an Authorization header; None: it has none."""
        if not self._roles:
            return Role.ADMINISTER
        scheme, _, token = (header or "").partition(" ")
        given, found = _digest(token.strip()), None
        for digest, role in self._roles:  # always all of them
            if compare_digest(digest, given):
                found = role
        return found if scheme.lower() == "bearer" else None


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
