"""The engine: one model, its drafters, and a thread that plays the rounds of all requests."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from pyspec.config import MAX_INT32, MAX_SEQUENCES, ContextConfig, require_bool, require_int, shown
from pyspec.engine.admission import Admitted, Settings, admission_of
from pyspec.engine.async_generation import AsyncGeneration
from pyspec.engine.embedding import Embedder, Vector, pooling_of
from pyspec.engine.generation import Generation, Mailbox, Reply
from pyspec.engine.many import Answers
from pyspec.engine.plan import Plan, checked_speculation, sized
from pyspec.engine.prompt import Prompt, checked_prompt
from pyspec.engine.result import Observer, Result
from pyspec.engine.saving import read, save
from pyspec.engine.status import EngineStatus, engine_status
from pyspec.engine.worker import Worker, Workshop
from pyspec.errors import ConfigError, UnsupportedError
from pyspec.files import require_path
from pyspec.llama.model import Model
from pyspec.speculation.config import Speculation
from pyspec.speculation.detection import drafter_for

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
_logger = logging.getLogger(__name__)
_MOST_QUEUED = 1 << 20
_N_PREFILL = 128
_MOST_BYTES = 1 << 50


class Engine:
    """Generates text with one model, for any number of requests at once. Any thread may use it.

    A thread of its own computes. Requests wait in a queue for one of its slots; those in slots share each round:
    their drafts are made together, verified together, and prompts are read piece by piece beside them.

    Args:
        model: The target; it must stay open.
        speculation: Which drafters propose. None is "auto"; ``Speculation("none")`` decodes plainly.
        context: Sizes of the target's context; ``n_ctx`` is divided among the slots. None gives each slot the model's
            context size, at most 4096 tokens.
        n_slots: Requests that run at once, 1 to 256.
        n_queue: Requests that may wait for a slot; with more, ``BusyError`` is raised.
        n_prefill: The most prompt tokens that are read in a round while others are speaking: more lets long prompts
            begin sooner, fewer makes the others' tokens come more evenly. None takes 128, or ``n_ubatch`` if smaller.
            Where more prompts wait than others speak, as many times more are read, up to ``n_ubatch``.
        n_keep: What becomes of a request whose context is full: None ends it; with a number it keeps so many of its
            first tokens, forgets half of those that follow, and goes on (llama.cpp's context shift).
        cache_bytes: Host memory for what slots held and lose to other requests; 0 keeps nothing.

    Raises:
        ConfigError: An option is wrong.
        UnsupportedError: Speculation cannot work with this model; the message says why.
        VocabMismatchError: The draft model has another vocabulary.

    Attributes:
        model: See above.
        speculation: See above.
        context_config: The sizes in use.
        n_ctx_seq: Tokens that one request may have, prompt and output together.
        n_slots: See above.
        n_queue: See above.
        n_keep: See above.

    Example:
        >>> with pyspec.Engine(model, speculation=pyspec.Speculation("ngram-simple")) as engine:  # doctest: +SKIP
        ...     print(engine.generate("Once upon a time", max_tokens=32).text)
    """

    def __init__(  # noqa: PLR0913 - each is a setting by its own name
        self,
        model: Model,
        *,
        speculation: Speculation | None = None,
        context: ContextConfig | None = None,
        n_slots: int = 1,
        n_queue: int = 256,
        n_prefill: int | None = None,
        n_keep: int | None = None,
        cache_bytes: int = 0,
    ) -> None:
        if not isinstance(model, Model):
            msg = f"model must be a Model, not {type(model).__name__}."
            raise ConfigError(msg)
        self.n_slots = require_int("n_slots", n_slots, 1, MAX_SEQUENCES)
        self.n_queue = require_int("n_queue", n_queue, 0, _MOST_QUEUED)
        if n_keep is not None:
            require_int("n_keep", n_keep, 0, MAX_INT32)
        self.n_keep = n_keep
        require_int("cache_bytes", cache_bytes, 0, _MOST_BYTES)
        if model.is_head:
            msg = f"{model.path.name} is a head for {drafter_for(model)}, no language model by itself; give its target."
            raise UnsupportedError(msg)
        self.model = model
        self.speculation = checked_speculation(speculation)
        self.context_config = sized(model, context, self.speculation, n_slots, shifts=n_keep is not None)
        n_ubatch = self.context_config.n_ubatch
        prefill = min(_N_PREFILL, n_ubatch) if n_prefill is None else require_int("n_prefill", n_prefill, 1, 1 << 20)
        plan = Plan(model, self.speculation, self.context_config, n_slots, min(prefill, n_ubatch), n_keep, cache_bytes)
        self._worker = Worker(plan.build, self.n_slots + self.n_queue)
        self._closing = weakref.finalize(self, _close_quietly, self._worker)
        self._admission = self._worker.call(
            lambda workshop: admission_of(workshop, self.speculation, shifts=n_keep is not None)
        )
        self.n_ctx_seq = self._admission.n_ctx_seq
        self._embedder = Embedder(self._worker, model, self.context_config, self.n_ctx_seq)

    def generate(self, prompt: Prompt, **settings: Unpack[Settings]) -> Result:
        """Generate a whole answer; see ``stream`` for the arguments.

        Raises:
            PyspecError: As in ``stream``. Any exception, KeyboardInterrupt included, has the ``Result`` so far in its
                attribute ``partial``.
        """
        # Waking for each round costs time that only an observer is worth.
        generation = self._start(prompt, settings, wakes=settings.get("observer") is not None)
        with _with_partial(generation.result):
            for _chunk in generation:
                pass
        return generation.result

    def stream(self, prompt: Prompt, **settings: Unpack[Settings]) -> Generation:
        """Generate an answer piece by piece.

        Args:
            prompt: Text, token ids, or a list of parts: texts, lists of token ids, and ``Embeddings``. Names of special
                tokens in text are read as these tokens; only a text at the beginning gets the vocabulary's BOS.
            **settings: See ``pyspec.engine.Settings``.

        Returns:
            An iterator with one chunk per round. The engine works whether it is iterated or not.

        Raises:
            ConfigError: An argument is wrong.
            TokenError: A token id is outside the vocabulary.
            ContextFullError: The prompt does not fit.
            GrammarError: The grammar is wrong; the message says where.
            UnsupportedError: The rule needs what the sampling does not have; the message says what.
            BusyError: The queue is full.
            ClosedError: The engine is closed.
            DeadlineError: While iterating: the time was over.
        """
        return self._start(prompt, settings, wakes=True)

    async def agenerate(self, prompt: Prompt, **settings: Unpack[Settings]) -> Result:
        """Generate a whole answer without blocking the event loop; see ``generate``."""
        generation = self.astream(prompt, **settings)
        with _with_partial(generation.result):
            async for _chunk in generation:
                pass
        return generation.result

    def astream(self, prompt: Prompt, **settings: Unpack[Settings]) -> AsyncGeneration:
        """Generate an answer piece by piece in an event loop; see ``stream``.

        The request is checked in a thread, when the stream begins (see ``AsyncGeneration``); what ``stream`` raises is
        raised there.
        """
        admit = functools.partial(self._admission.admit, prompt, **settings)
        return AsyncGeneration(admit, self._worker.submit, self._worker.cancel, self._admission.piece)

    def generate_many(
        self, prompts: Iterable[Prompt], *, progress: bool | None = None, **settings: Unpack[Settings]
    ) -> list[Result]:
        """Generate an answer to each prompt, as many at once as there are slots.

        Args:
            prompts: The prompts; they are taken one by one, when there is room for them.
            progress: Show a progress bar on stderr; None does where that is a terminal.
            **settings: See ``pyspec.engine.Settings``; they are the same for all.

        Returns:
            The results, in the order of the prompts.

        Raises:
            PyspecError: As in ``generate``, for the first request that fails; the others are cancelled then. The
                results so far are in its attribute ``partial``, as a list; which prompt failed, counted from 0, is in
                ``prompt_index``.
        """
        return Answers(self, prompts, settings, progress=progress).collect()

    def embed(self, prompt: Prompt, *, pooling: str | None = None) -> Vector:
        """Return a text as a vector; it is read between the rounds of requests.

        The first call makes a second context, for one text as long as a request may be.

        Args:
            prompt: Text or token ids, as in ``stream``.
            pooling: What becomes of the states of its tokens: "mean", "last", or "cls" for the first one. None takes
                what the model was made for.

        Returns:
            Floats, [n_embd_out], of length 1.

        Raises:
            ConfigError: An argument is wrong.
            ContextFullError: The text does not fit.
            UnsupportedError: ``pooling`` is None and the model was not made for embeddings; the model is an encoder;
                or the text has rows of floats.
            ClosedError: The engine is closed.
        """
        kind = pooling_of(self.model, pooling)
        tokens, rows = checked_prompt(prompt, self.model, self.n_ctx_seq)
        if rows:
            msg = "A text with rows of floats in it has no embedding."
            raise UnsupportedError(msg)
        self._worker.require_own_process()
        return self._embedder.embed(tokens, kind)

    def status(self) -> EngineStatus:
        """Return what is going on.

        Raises:
            ClosedError: The engine is closed.
        """
        return engine_status(self._worker.scheduler)

    def save_slot(self, slot: int, path: str | os.PathLike[str]) -> int:
        """Save what a slot holds to a file: the memories of target and drafters, and where its request stands.

        Args:
            slot: Its number, as in ``status``. A request that runs in it goes on.
            path: The file; it takes the place of a former one at once, when it is complete.

        Returns:
            How many tokens the request had emitted: what ``restore_slot`` gives comes after them. 0 for an idle slot.

        Raises:
            StateError: The slot is empty, or the file cannot be written; a former file is as it was.
            UnsupportedError: The request's prompt has embeddings.
        """
        number = require_int("slot", slot, 0, self.n_slots - 1)
        file = require_path("path", path)
        saved = self._worker.call(lambda workshop: save(workshop.scheduler.slots[number], workshop.context))
        saved.write(file)
        return saved.n_emitted

    def restore_slot(self, path: str | os.PathLike[str], *, observer: Observer | None = None) -> Generation | None:
        """Take back what was saved.

        Args:
            path: A file of ``save_slot``, of an engine with this model, as many slots, and such a memory.
            observer: Follows the rounds.

        Returns:
            The generation that goes on, as if it had never stopped; its chunks and result begin where it was saved.
            None when the slot was idle: then a free slot holds its tokens for requests that begin alike.

        Raises:
            StateError: The file is damaged, or belongs to another model or another layout of memory.
            BusyError: No slot is free, or the queue is full.
        """
        saved = read(require_path("path", path))
        if saved.request is None:
            self._admission.require_fitting(saved)
            self._worker.call(lambda workshop: workshop.scheduler.put(saved))
            return None
        mailbox = Mailbox(wakes=True, sender=self._worker.thread)
        return self._submit(self._admission.readmit(saved, mailbox.put, observer), mailbox)

    def call(self, function: Callable[[Workshop], T]) -> T:
        """Run a function with the target's context on the engine's thread, between two rounds.

        For measuring and tests; what it changes in a memory that requests use is its own affair.

        Raises:
            ClosedError: The engine is closed.
        """
        if not callable(function):
            msg = f"function must be a function of the engine's workshop, not {shown(function)}."
            raise ConfigError(msg)
        return self._worker.call(function)

    def close(self, *, finish: bool = False) -> None:
        """End all requests, and free the drafters and the context. The models stay open. May be called again.

        Args:
            finish: Let the requests that run or wait come to their end first, instead of cancelling them.

        Raises:
            NgramFileError: What drafters learned could not be saved. All is freed nevertheless.
            Exception: What a drafter of others raised when it was closed.
        """
        complaint = self._worker.close(finish=require_bool("finish", finish))
        self._closing.detach()
        if complaint is not None:
            raise complaint

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # which counts more than what may go wrong here
            _close_quietly(self._worker)
            self._closing.detach()

    def _start(self, prompt: Prompt, settings: Settings, *, wakes: bool) -> Generation:
        mailbox = Mailbox(wakes=wakes, sender=self._worker.thread)
        return self._submit(self._admission.admit(prompt, mailbox.put, **settings), mailbox)

    def _submit(self, admitted: Admitted, mailbox: Mailbox) -> Generation:
        request, info, observer = admitted
        reply = Reply(request, info, self._admission.piece, observer)
        self._worker.submit(request)
        return Generation(request, reply, mailbox, self._worker.cancel)


def _close_quietly(worker: Worker) -> None:
    """Close where nobody would hear of an error."""
    complaint = worker.close()
    if complaint is not None:
        _logger.error("An engine was closed, and something in it complained.", exc_info=complaint)


@contextlib.contextmanager
def _with_partial(result: Result) -> Iterator[None]:
    """Let what is raised carry what was generated."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(AttributeError):  # a class with slots cannot carry it
            error.partial = result  # type: ignore[attr-defined]
        raise
