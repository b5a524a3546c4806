"""How much memory may go into large pages.

A decode reads all weights, and with pages of 4 KiB the processor spends some percent of that on looking up where they
are. So a model that is small beside the memory that is free moves to pages of 2 MiB when it was loaded. What was laid
out for the CPU (``ModelConfig.repack``) takes no more memory then; what was mapped becomes a copy of the process's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_MOST = 4 << 30  # bytes: a second or two of copying
_SHARE = 4  # of what is free, so that other models, and other processes, can do the same


def most_bytes(root: Path = Path("/")) -> int:
    """Return how many bytes of weights may move to large pages; 0 where the system has none.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    if not re.search(r"\[(always|madvise)\]", _text(root / "sys/kernel/mm/transparent_hugepage/enabled")):
        return 0
    available = _number(_text(root / "proc/meminfo"), "MemAvailable:") << 10
    return max(0, min(_MOST, *(room // _SHARE for room in (available, *_rooms_of_groups(root)))))


def _rooms_of_groups(root: Path) -> Iterator[int]:
    """Yield what each control group of this process may still take, where it has a limit (a container, for example)."""
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            yield from _rooms(mounts, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _rooms(
                mounts / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            )


def _rooms(mount: Path, path: str, limit: str, used: str, reclaimable: str) -> Iterator[int]:
    """Yield the room of a group and of those around it; from inside a container the innermost ones may not be seen."""
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        most, taken = _text(folder / limit).strip(), _text(folder / used).strip()
        if most.isdigit() and taken.isdigit():
            yield int(most) - int(taken) + _number(_text(folder / "memory.stat"), reclaimable)
        if folder == mount:
            return


def _number(text: str, name: str) -> int:
    found = re.search(rf"^{name}\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
