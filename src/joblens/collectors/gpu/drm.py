"""GPUs of the kernel's graphics subsystem (DRM), and their small files in sysfs.

Links of sysfs are not followed by name: `device/uevent` has the driver of a card and its bus address.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from joblens.collectors.gpu.reading import Device, Use
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import Key

FOLDER = "sys/class/drm"
_CARD = re.compile(r"card\d+")
_RENDER = re.compile(r"renderD\d+")
_DEVICE = re.compile(rb"\d+:\d+")
_NUMBER = re.compile(rb"-?\d{1,18}")
_TOO_LARGE = 1 << 63


class Card(NamedTuple):
    path: str  # sys/class/drm/cardN
    driver: str
    bus: str
    pci_id: str
    device: str  # MAJOR:MINOR of the render node
    hwmons: Dict[str, str]  # by name, the folder

    @property
    def folder(self) -> str:
        return self.path + "/device"


def find_cards(host: Host, names: Iterable[str], drivers: Tuple[str, ...]) -> List[Card]:
    """Return them in the order of bus addresses."""
    paths = [f"{FOLDER}/{name}" for name in names if _CARD.fullmatch(name)]
    cards = [card for path in paths for card in [_find_card(host, path, drivers)] if card]
    return sorted(cards, key=lambda card: card.bus)


def _find_card(host: Host, path: str, drivers: Tuple[str, ...]) -> Optional[Card]:
    facts = parse_uevent(read_file(host, path + "/device/uevent"))
    driver, bus = facts.get("DRIVER", ""), facts.get("PCI_SLOT_NAME", "")
    if driver not in drivers or not bus:
        return None
    return Card(path, driver, bus, facts.get("PCI_ID", ""), _render_node(host, path), _hwmons(host, path))


def parse_uevent(data: bytes) -> Dict[str, str]:
    lines = data.decode("utf-8", "replace").splitlines()
    return {name: value for line in lines for name, equals, value in [line.partition("=")] if equals}


def _render_node(host: Host, path: str) -> str:
    for name in list_folder(host, path + "/device/drm"):
        if _RENDER.fullmatch(name):
            number = read_file(host, f"{FOLDER}/{name}/dev").strip()
            return number.decode() if _DEVICE.fullmatch(number) else ""
    return ""


def _hwmons(host: Host, path: str) -> Dict[str, str]:
    folders = [f"{path}/device/hwmon/{name}" for name in list_folder(host, path + "/device/hwmon")]
    return {read_word(host, folder + "/name"): folder for folder in folders}


def list_folder(host: Host, path: str) -> List[str]:
    return sorted(host.list_if_there(path), key=lambda name: (len(name), name))


def read_word(host: Host, path: str) -> str:
    """Return the content of a one-word file, "" if it does not exist."""
    return read_file(host, path).decode("utf-8", "replace").strip("\0\n\t ")


def read_file(host: Host, path: str) -> bytes:
    try:
        return host.read_once(path)
    except OSError:
        return b""


class Files:
    """The small files of one GPU.

    A missing file is not tried again. `silent` is true if all files that query the chip itself fail, as for a
    GPU that has fallen off its bus.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._missing: Set[str] = set()
        self._asked = self._answered = 0

    def begin(self) -> None:
        self._asked = self._answered = 0

    @property
    def silent(self) -> bool:
        return self._asked > 0 and not self._answered

    def read(self, path: str, of_the_chip: bool = True) -> Optional[bytes]:
        if path in self._missing:
            return None
        try:
            data = self._host.read(path)
        except (FileNotFoundError, NotADirectoryError):
            self._missing.add(path)
            return None
        except OSError:  # unsupported, asleep or gone: the errors are the same
            self._asked += of_the_chip
            return None
        self._asked += of_the_chip
        self._answered += of_the_chip
        return data

    def number(self, path: str, of_the_chip: bool = True) -> Optional[int]:
        data = self.read(path, of_the_chip)
        return None if data is None else parse_number(path, data)


def parse_number(path: str, data: bytes) -> Optional[int]:
    """None for an empty file, as some are for a moment when a driver is unloaded."""
    word = data.strip()
    if not word:
        return None
    if not _NUMBER.fullmatch(word):
        raise MalformedError(path, f"not a number: {data[:80]!r}")
    return int(word)


def known(values: Dict[str, Optional[int]]) -> Dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


def fitting(value: Optional[int]) -> Optional[int]:
    """None for values beyond 63 bits, which are implausible."""
    return None if value is None or abs(value) >= _TOO_LARGE else value


def first(values: Iterable[Optional[int]]) -> Optional[int]:
    return next((value for value in values if value is not None), None)


def times(value: Optional[int], factor: int) -> Optional[int]:
    return None if value is None else fitting(value * factor)


class Fleet:
    """The GPUs of a vendor across readings. One that has been seen is not forgotten.

    `identify` returns a GPU's permanent labels, `read` its values.
    """

    def __init__(
        self,
        host: Host,
        drivers: Tuple[str, ...],
        identify: Callable[[Card], Device],
        read: Callable[[Card, Files, Device], Dict[str, int]],
    ) -> None:
        self._host, self._drivers, self._identify, self._read = host, drivers, identify, read
        self._names: List[str] = []
        self._devices: Dict[str, Device] = {}  # by UUID, all that were ever seen
        self.cards: Dict[str, Card] = {}  # by UUID, those present now
        self._files: Dict[str, Files] = {}
        self.find()

    def find(self) -> None:
        self._names = list_folder(self._host, FOLDER)
        found = [(self._identify(card), card) for card in find_cards(self._host, self._names, self._drivers)]
        uuids = [device.uuid for device, _ in found]
        self.cards, self._files = {}, {}
        for device, card in found:
            # GPUs with the same identifier can be distinguished by their bus address only.
            uuid = device.uuid if uuids.count(device.uuid) == 1 else f"{device.vendor}-{card.bus}"
            self.cards[uuid], self._files[uuid] = card, Files(self._host)
            self._devices[uuid] = device._replace(uuid=uuid)
        if not self._devices:
            raise FileNotFoundError(2, "no GPU of this vendor", f"/{FOLDER}")
        self._number()

    def _number(self) -> None:
        """The label `index`: from 0 in the order of bus addresses."""
        order = sorted(self._devices.values(), key=lambda device: device.bus)
        self._devices = {it.uuid: it._replace(number=str(number)) for number, it in enumerate(order)}

    def read(self) -> List[Device]:
        if list_folder(self._host, FOLDER) != self._names or any(it.silent for it in self._files.values()):
            self.find()  # after a reset it has new files
        return [it._replace(values=self._values(it)) for it in self._devices.values()]

    def _values(self, device: Device) -> Dict[str, int]:
        card = self.cards.get(device.uuid)
        if card is None:
            return {"up": 0}
        files = self._files[device.uuid]
        files.begin()
        if files.read(card.folder + "/power/runtime_status", of_the_chip=False) == b"suspended\n":
            return {"up": 1}  # reading more would wake it up
        values = self._read(card, files, device)
        return {"up": 0} if files.silent else {"up": 1, **values}


def count_uses(host: Host, devices: List[Device], uses: List[Use]) -> List[Device]:
    """Add the number of processes to the devices, if all processes are visible."""
    if not host.sees_all_processes():
        return devices
    counts = Counter(use.gpu for use in uses)
    return [
        it._replace(values={**it.values, "processes": counts[it.uuid]}) if it.values["up"] else it
        for it in devices
    ]


class SameKeys:
    """Keeps the same object as long as the keys are equal."""

    def __init__(self) -> None:
        self._keys: Tuple[Key, ...] = ()

    def __call__(self, keys: Tuple[Key, ...]) -> Tuple[Key, ...]:
        if keys != self._keys:
            self._keys = keys
        return self._keys
