"""Prompts to measure with: some are shipped, others are files of the same form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspec.errors import ConfigError
from pyspec.files import read_whole

_FOLDER = Path(__file__).parent / "prompts"
_SEPARATOR = "%%"
_SUFFIX = ".txt"


@dataclass(frozen=True, slots=True)
class Workload:
    """A few prompts of one kind.

    Attributes:
        name: Such as "code-editing".
        prompts: Texts as they are, without a chat template.
    """

    name: str
    prompts: tuple[str, ...]


def workload_names() -> list[str]:
    """Return the names of the workloads that are shipped."""
    return sorted(file.stem for file in _FOLDER.glob(f"*{_SUFFIX}"))


def load_workload(name: str) -> Workload:
    """Return a workload by its name, or the one in a file.

    A file is UTF-8 text; a line ``%%`` separates two prompts, and one newline at the end of each is cut.

    Raises:
        ConfigError: There is neither such a workload nor such a file, or it is empty or not UTF-8.
    """
    if name in workload_names():
        return Workload(name, _prompts((_FOLDER / f"{name}{_SUFFIX}").read_text(encoding="utf-8")))
    try:
        with Path(name).open(encoding="utf-8") as file:
            text = read_whole(file)
    except UnicodeDecodeError as error:
        msg = f"The workload file {name} is not UTF-8: {error}."
        raise ConfigError(msg) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = error.strerror if isinstance(error, OSError) else error
        msg = f"{name!r} is neither a workload ({', '.join(workload_names())}) nor a file that can be read: {why}."
        raise ConfigError(msg) from None
    prompts = _prompts(text)
    if not prompts:
        msg = f"The workload file {name} has no prompt."
        raise ConfigError(msg)
    return Workload(Path(name).stem, prompts)


def _prompts(text: str) -> tuple[str, ...]:
    parts: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if line.strip() == _SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(line)
    prompts = ("".join(part).removesuffix("\n") for part in parts)
    return tuple(prompt for prompt in prompts if prompt.strip())
