"""NVML, the library of NVIDIA's driver, through NVIDIA's own binding (package nvidia-ml-py).

Both are loaded late, as most machines have neither. What a GPU, the library or the binding does not provide
is None. A function that does not exist is not called again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Set, Tuple

from joblens.core.errors import OutsideError

LIBRARY = "libnvidia-ml.so.1"
# Codes from nvml.h: a binding older than the library does not define them all.
_UNINITIALIZED, _DRIVER_NOT_LOADED, _FUNCTION_NOT_FOUND = 1, 9, 13
_GPU_IS_LOST, _RESET_REQUIRED, _VERSION_MISMATCH = 15, 16, 18
_GONE = (_UNINITIALIZED, _DRIVER_NOT_LOADED, _VERSION_MISMATCH)
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2
_LOST = (_GPU_IS_LOST, _RESET_REQUIRED)

Call = Tuple[Any, ...]  # a function's name and its arguments


class NoNvmlError(OutsideError):
    """NVML cannot be used. Without its library there is probably no GPU either."""

    def __init__(self, what: str, library: bool) -> None:
        super().__init__(what)
        self.library = library


class DriverGoneError(OutsideError):
    """The driver was unloaded or reset: all handles are invalid."""


class CardLostError(OutsideError):
    """One GPU does not respond any more."""


def load_nvml() -> Nvml:
    """Load without opening, which calls the driver and may take seconds."""
    # The library first: the binding takes 5 MB, and many machines that have it have no such GPU.
    try:
        import ctypes

        ctypes.CDLL(LIBRARY)
    except (ImportError, OSError):
        raise NoNvmlError(f"{LIBRARY} not found", False) from None
    try:
        import pynvml
    except ImportError:
        raise NoNvmlError(f"{LIBRARY} found, but the Python package nvidia-ml-py is missing", True) from None
    return Nvml(pynvml)


class Nvml:
    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self._lacks: Set[str] = set()

    def open(self) -> None:
        """Raises FileNotFoundError if there is a library but no driver, as in some images."""
        try:
            self.binding.nvmlInit()
        except self.binding.NVMLError as error:
            if error.value == _DRIVER_NOT_LOADED:
                raise FileNotFoundError(2, "NVIDIA's driver is not loaded", LIBRARY) from None
            raise NoNvmlError(f"{LIBRARY}: {error}", True) from None

    def close(self) -> None:
        with suppress(self.binding.NVMLError):  # a driver that is gone cannot be shut down
            self.binding.nvmlShutdown()

    def ask(self, name: str, *args: Any) -> Any:
        """Return the result or None. Raises only what makes further calls pointless."""
        return self._call(name, name, args)[1]

    def run(self, name: str, *args: Any) -> bool:
        """Call a function without a result; return whether it succeeded."""
        return self._call(name, name, args)[0]

    def memory(self, handle: Any) -> Any:
        """Without the driver's reserved memory, as in nvidia-smi, if the library is new enough."""
        name = "nvmlDeviceGetMemoryInfo"
        return self._call("memory v2", name, (handle, _MEMORY_V2))[1] or self.ask(name, handle)

    def ask_first(self, *calls: Call) -> Any:
        """Return the first known result: newer functions first, as older libraries have only the others."""
        for name, *args in calls:
            found = self.ask(name, *args)
            if found is not None:
                return found
        return None

    def _call(self, what: str, name: str, args: Call) -> Tuple[bool, Any]:
        """`what` is remembered if it is missing: one function of the binding can stand for several."""
        if what in self._lacks:
            return False, None
        function = getattr(self.binding, name, None)
        if function is None:
            self._lacks.add(what)
            return False, None
        try:
            return True, function(*args)
        except self.binding.NVMLError as error:
            if error.value == _FUNCTION_NOT_FOUND:
                self._lacks.add(what)
            elif error.value in _GONE:
                raise DriverGoneError(f"{LIBRARY}: {error}") from None
            elif error.value in _LOST:
                raise CardLostError(f"{LIBRARY}: {error}") from None
            return False, None
        except UnicodeDecodeError:  # a name or UUID from broken memory
            return False, None
