"""What a collector's reader can be beside a plain function: one that says what its rows leave out."""

from __future__ import annotations

from typing import Tuple

from joblens.core.model import Rows


class Reader:
    warning = ""  # why the rows of the last reading are not all that there is; reported when it changes

    def __call__(self) -> Tuple[Rows, ...]:
        raise NotImplementedError
