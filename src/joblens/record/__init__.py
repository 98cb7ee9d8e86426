"""Types of a job: its facts, its end, and the record that every report is rendered from.

Each field is described where it is declared. The JSON Schema (`joblens schema`) and the tables of docs/api.md
are generated from these declarations.
"""

import sys

if "typing_extensions" not in sys.modules:
    # msgspec prefers it to typing where it is installed. Nothing here needs it, and it takes 10 ms to load.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    import msgspec  # noqa: F401

    del sys.modules["typing_extensions"]
