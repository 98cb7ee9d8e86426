"""Who may see what: one function from a user to the scope of jobs that every answer is restricted to.

user      own jobs
manager   own jobs, and those on the accounts that [serve.managers] gives to the user or one of their groups
support   all jobs
admin     all jobs, and everybody's tokens
"""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from joblens.core.errors import sentence
from joblens.serve.errors import ApiError
from joblens.serve.identity import Identity
from joblens.serve.settings import ServeSettings
from joblens.store.catalog.scope import ALL, Scope

USER, MANAGER, SUPPORT, ADMIN = ROLES = ("user", "manager", "support", "admin")
_KEPT_SECONDS = 60.0  # for which a user's name and groups are not looked up again
_MOST_KEPT = 10_000


class Person(NamedTuple):
    """A user as the password and group databases know them; without a name if they do not."""

    name: str = ""
    groups: frozenset[str] = frozenset()


class Viewer(NamedTuple):
    """Who reads, and what they may see."""

    user: str
    uid: int
    how: str
    role: str
    scope: Scope

    @property
    def sees_all(self) -> bool:
        return self.scope.everything

    def is_other(self, user: str | None) -> bool:
        """Whether a job of this user is another person's."""
        return not self.user or user != self.user


def find_person(uid: int) -> Person:
    """Ask the databases, which may take a while: they can be on the network."""
    try:
        found = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return Person()
    gids = os.getgrouplist(found.pw_name, found.pw_gid)
    return Person(found.pw_name, frozenset(name for gid in gids for name in _group(gid)))


def _group(gid: int) -> list[str]:
    try:
        return [grp.getgrgid(gid).gr_name]
    except KeyError:
        return []


class Policy:
    def __init__(
        self,
        settings: ServeSettings,
        find: Callable[[int], Person] = find_person,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._find, self._clock = settings, find, clock
        self._own = os.geteuid()
        self._known: dict[int, tuple[float, Person]] = {}

    def view(self, identity: Identity) -> Viewer | None:
        """Return None if a token is of a user who no longer exists. Raises ApiError."""
        person = self._person(identity.uid)
        if identity.user and identity.user != person.name:
            return None
        role, scope = self._decide(identity.uid, person)
        return Viewer(person.name, identity.uid, identity.how, role, scope)

    def is_known(self, uid: int) -> bool:
        """Whether `view` will not have to ask the databases."""
        found = self._known.get(uid)
        return found is not None and self._clock() - found[0] < _KEPT_SECONDS

    def _person(self, uid: int) -> Person:
        """Raises ApiError. An unknown user is looked up again: the database may have failed, without an error
        that getpwuid(3) reports."""
        if self.is_known(uid):
            return self._known[uid][1]
        try:
            found = self._find(uid)
        except OSError as error:
            raise ApiError(503, f"the user database cannot be read: {sentence(error)}; retry later") from None
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        self._known.pop(uid, None)
        if found.name:
            self._known[uid] = self._clock(), found
        return found

    def _decide(self, uid: int, person: Person) -> tuple[str, Scope]:
        """The policy. The user of the service can read the store's files anyway."""
        roles = self._settings.roles
        if uid == self._own or _is_named(person, roles.admin):
            return ADMIN, ALL
        if _is_named(person, roles.support):
            return SUPPORT, ALL
        managers = self._settings.managers.items()
        accounts = frozenset(account for account, names in managers if _is_named(person, names))
        own = frozenset([person.name] if person.name else [])
        return (MANAGER if accounts else USER), Scope(False, own, accounts)


def _is_named(person: Person, names: Iterable[str]) -> bool:
    return bool(person.name) and any(
        name[1:] in person.groups if name.startswith("%") else name == person.name for name in names
    )
