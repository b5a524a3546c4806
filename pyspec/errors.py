"""Every exception that pyspec raises on purpose.

::

    PyspecError
    ├── ConfigError (ValueError)              an option or argument is wrong
    │   ├── TokenError                        a token id outside the vocabulary
    │   ├── SequenceError                     a sequence id outside the context
    │   ├── PositionError                     a position that cannot follow what is in memory
    │   └── BatchError                        a batch that is empty, too long or malformed
    ├── LibraryError                          the native library
    │   ├── LibraryNotFoundError (ImportError)
    │   └── LibraryMismatchError (ImportError)
    ├── ModelError                            a model file
    │   ├── ModelNotFoundError (FileNotFoundError)
    │   ├── ModelFormatError (ValueError)     not GGUF, truncated, unknown version
    │   ├── ModelLoadError                    llama.cpp refused it
    │   ├── LoadCancelledError                the progress callback said stop
    │   ├── QuantizeError                     llama.cpp's quantiser refused it
    │   └── VocabError                        text that cannot become tokens, or the reverse
    ├── ContextError                          a context or its memory
    │   ├── ContextCreateError
    │   ├── ContextFullError                  no room for more tokens
    │   ├── DecodeError                       the native decode failed
    │   ├── DecodeAbortedError                the native decode was asked to stop
    │   ├── RollbackError                     memory could not drop what had to go
    │   └── StateError                        saved state that does not fit or is damaged
    ├── LifetimeError (RuntimeError)          right object, wrong moment
    │   ├── ClosedError                       used after close()
    │   ├── WrongThreadError                  used from a thread that does not own it
    │   ├── ForkedError                       used in a process forked after it was made
    │   ├── BusyError                         a call while another one is still in progress
    │   └── BrokenError                       used after an internal failure of the native library
    ├── DeadlineError (TimeoutError)          a request's time ran out
    ├── SpeculationError                      speculative decoding
    │   ├── UnsupportedError                  this combination cannot work; the message says why
    │   ├── VocabMismatchError                draft model and target do not share a vocabulary
    │   ├── DrafterError                      a drafter broke its contract
    │   ├── NgramFileError                    a file of n-grams or past requests that cannot be read or written
    │   └── StalledError                      a round that made no progress
    ├── GrammarError (ValueError)             a grammar that cannot be used, or a token that it forbids
    ├── HubError                              finding, fetching or storing a model
    │   ├── FetchError                        a download failed
    │   └── IntegrityError                    what arrived is not what was pinned
    ├── TraceError (ValueError)               a trace file that cannot be read or written
    └── NativeError                           an assertion or exception inside the native library
        └── OutOfMemoryError (MemoryError)    the host or a device could not allocate
"""

from __future__ import annotations

__all__ = [
    "BatchError",
    "BrokenError",
    "BusyError",
    "ClosedError",
    "ConfigError",
    "ContextCreateError",
    "ContextError",
    "ContextFullError",
    "DeadlineError",
    "DecodeAbortedError",
    "DecodeError",
    "DrafterError",
    "FetchError",
    "ForkedError",
    "GrammarError",
    "HubError",
    "IntegrityError",
    "LibraryError",
    "LibraryMismatchError",
    "LibraryNotFoundError",
    "LifetimeError",
    "LoadCancelledError",
    "ModelError",
    "ModelFormatError",
    "ModelLoadError",
    "ModelNotFoundError",
    "NativeError",
    "NgramFileError",
    "OutOfMemoryError",
    "PositionError",
    "PyspecError",
    "QuantizeError",
    "RollbackError",
    "SequenceError",
    "SpeculationError",
    "StalledError",
    "StateError",
    "TokenError",
    "TraceError",
    "UnsupportedError",
    "VocabError",
    "VocabMismatchError",
    "WrongThreadError",
]


class PyspecError(Exception):
    """Base of every exception that pyspec raises on purpose.

    Attributes:
        partial: What was generated before the error, a ``pyspec.Result``, or None.
    """

    partial: object | None = None


class ConfigError(PyspecError, ValueError):
    """An option or argument is wrong."""


class TokenError(ConfigError):
    """A token id lies outside the vocabulary."""


class SequenceError(ConfigError):
    """A sequence id lies outside the context."""


class PositionError(ConfigError):
    """A position cannot follow what is in memory."""


class BatchError(ConfigError):
    """A batch is empty, too long or malformed."""


class LibraryError(PyspecError):
    """The native library is missing or is not ours."""


class LibraryNotFoundError(LibraryError, ImportError):
    """No native library was found; the message lists each path tried."""


class LibraryMismatchError(LibraryError, ImportError):
    """A library was found, but its ABI number or upstream tag is not the expected one."""


class ModelError(PyspecError):
    """Something is wrong with a model file."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """The model file does not exist or cannot be read."""


class ModelFormatError(ModelError, ValueError):
    """The file is not GGUF, is truncated, or has an unknown version."""


class ModelLoadError(ModelError):
    """llama.cpp refused to load the model."""


class LoadCancelledError(ModelError):
    """The progress callback asked to stop loading."""


class QuantizeError(ModelError):
    """llama.cpp's quantiser refused the file or the type."""


class VocabError(ModelError):
    """Text cannot become tokens, or tokens cannot become text."""


class ContextError(PyspecError):
    """Something is wrong with a context or its memory."""


class ContextCreateError(ContextError):
    """llama.cpp refused to create the context."""


class ContextFullError(ContextError):
    """There is no room for more tokens."""


class DecodeError(ContextError):
    """The native decode failed."""


class DecodeAbortedError(ContextError):
    """The native decode was asked to stop."""


class RollbackError(ContextError):
    """The memory could not drop what had to go."""


class StateError(ContextError):
    """Saved state does not fit this context, or is damaged."""


class LifetimeError(PyspecError, RuntimeError):
    """The right object at the wrong moment."""


class ClosedError(LifetimeError):
    """The object was used after close()."""


class WrongThreadError(LifetimeError):
    """The object was used from a thread that does not own it."""


class ForkedError(LifetimeError):
    """The object was made before fork() and used in the child."""


class BusyError(LifetimeError):
    """Another call on the same object is still in progress."""


class BrokenError(LifetimeError):
    """The object was used after an internal failure of the native library."""


class DeadlineError(PyspecError, TimeoutError):
    """A request took longer than it was given; what it has said is in ``partial``."""


class SpeculationError(PyspecError):
    """Something is wrong with speculative decoding."""


class UnsupportedError(SpeculationError):
    """This combination cannot work; the message says why and what does."""


class VocabMismatchError(SpeculationError):
    """The draft model and the target do not share a vocabulary."""


class DrafterError(SpeculationError):
    """A drafter broke its contract."""


class NgramFileError(SpeculationError):
    """A file of ngram-cache or suffix is damaged, or cannot be read or written."""


class StalledError(SpeculationError):
    """A round made no progress."""


class GrammarError(PyspecError, ValueError):
    """A grammar cannot be used, or forbids what was asked.

    Args:
        message: What was asked, what was found, what to do.
        line, column: Where in the grammar's text, counted from 1 in characters; None where there is no one place.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class HubError(PyspecError):
    """Finding, fetching or storing a model failed."""


class FetchError(HubError):
    """A download failed."""


class IntegrityError(HubError):
    """What arrived is not what was pinned."""


class TraceError(PyspecError, ValueError):
    """A trace file cannot be read or written."""


class NativeError(PyspecError):
    """An assertion or exception inside the native library."""


class OutOfMemoryError(NativeError, MemoryError):
    """The host or a device could not allocate."""
