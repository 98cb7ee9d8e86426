"""The signal module without its enumerations, which take as long to create as two samples."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # what the public module wraps: the same functions and numbers

__all__ = ["signal"]
