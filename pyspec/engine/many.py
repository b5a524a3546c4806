"""Many prompts through one engine."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Protocol

from pyspec.config import require_bool, shown
from pyspec.engine.admission import Settings
from pyspec.engine.generation import Generation
from pyspec.engine.prompt import Prompt
from pyspec.engine.result import Result
from pyspec.errors import BusyError, ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Streams(Protocol):
    """What is asked of an engine."""

    n_slots: int
    n_queue: int

    def stream(self, prompt: Prompt, **settings: Unpack[Settings]) -> Generation:
        """See ``Engine.stream``."""
        ...


class Answers:
    """Keeps an engine's slots busy with prompts and collects their results; see ``Engine.generate_many``."""

    def __init__(
        self, engine: Streams, prompts: Iterable[Prompt], settings: Settings, *, progress: bool | None
    ) -> None:
        self._engine = engine
        if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Iterable):
            msg = f"prompts must be a list of prompts, not {shown(prompts)}."
            raise ConfigError(msg)
        self._prompts = prompts
        self._settings = settings
        self._shows = sys.stderr.isatty() if progress is None else require_bool("progress", progress)
        self._results: list[Result] = []

    def collect(self) -> list[Result]:
        """Return the results, in order."""
        running: deque[Generation] = deque()
        n_most = min(2 * self._engine.n_slots, self._engine.n_slots + self._engine.n_queue)
        total = len(self._prompts) if isinstance(self._prompts, Sized) else None
        try:
            with _bar(total, shows=self._shows) as advance:
                for prompt in self._prompts:
                    if len(running) >= n_most:
                        self._finish(running, advance)
                    with _of_prompt(len(self._results) + len(running)):
                        running.append(self._begin(prompt, running, advance))
                while running:
                    self._finish(running, advance)
        except BaseException as error:
            self._results += [generation.result for generation in running]
            with contextlib.suppress(AttributeError):
                error.partial = self._results  # type: ignore[attr-defined]
            raise
        finally:
            for generation in running:
                generation.close()
        return self._results

    def _begin(self, prompt: Prompt, running: deque[Generation], advance: Callable[[], object]) -> Generation:
        """Begin with a prompt; where others fill the queue, wait for what runs here."""
        while running:
            with contextlib.suppress(BusyError):
                return self._engine.stream(prompt, **self._settings)
            self._finish(running, advance)
        return self._engine.stream(prompt, **self._settings)

    def _finish(self, running: deque[Generation], advance: Callable[[], object]) -> None:
        """Wait for the oldest one."""
        with _of_prompt(len(self._results)):
            for _chunk in running[0]:
                pass
        self._results.append(running.popleft().result)
        advance()


@contextlib.contextmanager
def _of_prompt(index: int) -> Iterator[None]:
    """Let an error tell which prompt it is of."""
    try:
        yield
    except Exception as error:
        if not hasattr(error, "prompt_index"):  # it was of another one, which had to be waited for
            with contextlib.suppress(AttributeError):  # of classes that take none, and of Python before 3.11
                error.prompt_index = index  # type: ignore[attr-defined]
                error.add_note(f"That was prompt {index}, counted from 0.")  # type: ignore[attr-defined,unused-ignore]
        raise


@contextlib.contextmanager
def _bar(total: int | None, *, shows: bool) -> Iterator[Callable[[], object]]:
    """Show a progress bar, or nothing; yields what advances it."""
    if not shows:
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415 - only where it is seen
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn  # noqa: PLC0415

    columns = ("generating", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("generating", total=total)
        yield lambda: bar.advance(task)
