"""Whose jobs a reader may see: one policy, as a Python function and as the same condition in SQL."""

from __future__ import annotations

from joblens.core.named_tuple import NamedTuple
from joblens.store.lake.columns import storable


class Scope(NamedTuple):
    """Jobs of these users, and jobs on these accounts; or everything."""

    everything: bool
    users: frozenset[str]
    accounts: frozenset[str]

    def allows(self, user: str | None, account: str | None) -> bool:
        """A job without a user or an account matches none: an empty name in the scope is ignored."""
        return (
            self.everything
            or (_is_name(user) and user in self.users)
            or (_is_name(account) and account in self.accounts)
        )

    def condition(self, plus: str = "") -> tuple[str, list[str]]:
        """Return what `allows` decides as a condition on the columns `user` and `account`.

        With a plus SQLite does not use an index for it, if another condition selects fewer rows
        (https://www.sqlite.org/optoverview.html#uplus).
        """
        if self.everything:
            return "TRUE", []
        conditions, values = list[str](), list[str]()
        for column, names in (("user", self.users), ("account", self.accounts)):
            usable = sorted(filter(_is_name, names))
            if usable:
                conditions.append(f'{plus}"{column}" IN ({", ".join("?" * len(usable))})')
                values += usable
        return f"({' OR '.join(conditions) or 'FALSE'})", values


ALL = Scope(True, frozenset(), frozenset())


def _is_name(text: str | None) -> bool:
    """What cannot be stored as it is matches no job: the stored forms of two such texts can be equal."""
    return text is not None and text != "" and storable(text) == text and "\0" not in text
