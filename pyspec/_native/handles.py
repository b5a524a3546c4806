"""Owned native objects: who may use them, when, and who frees them.

The life of a handle:

1. A ``pys_*_create`` call returns an address; ``Handle`` takes it over, together with the objects that
   must outlive it (a context keeps its model).
2. Each use goes through ``pointer``, which raises when the handle is closed, belongs to a process that
   was forked, to another thread, or failed an assertion before.
3. ``close()`` lets go. The native object is freed when nothing refers to it any more: a numpy view of
   its memory keeps it alive, so a view never dangles.
4. What was never closed is freed by ``weakref.finalize`` when it is collected, or else at exit, newest first.
   A forked child frees nothing of its parent's, because the parent's threads and devices are not its own.
5. At exit daemon threads may still be inside a call. ``pys_leave`` stops them there before anything is freed;
   when one does not stop in time, nothing is freed and the system takes it all back.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from pyspec._native.library import lib
from pyspec._native.status import Status, check
from pyspec.errors import BrokenError, ClosedError, ForkedError, WrongThreadError

_n_forks = 0


def _count_fork() -> None:
    global _n_forks  # noqa: PLW0603 - a process-wide fact
    _n_forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


_LEAVE_MILLISECONDS = 2000
_NEXT_THREAD = 0  # no thread has this number
_exited = False
_serials = itertools.count()
_open: dict[int, weakref.finalize[Any, Any]] = {}  # in order of creation


class _Native(ctypes.c_void_p):
    """The address and its finaliser; referred to by the handle, by views of native memory, and by calls under way.

    ctypes holds its arguments during a call, so an object that another thread closes meanwhile is freed after it.
    """

    def __init__(self, address: int, free: Callable[[int], None], keeps: tuple[object, ...]) -> None:
        super().__init__(address)
        serial = next(_serials)
        self.finalizer = weakref.finalize(self, _free, serial, address, free, keeps, _n_forks)
        self.finalizer.atexit = False  # _free_all does it
        _open[serial] = self.finalizer


def _free(serial: int, address: int, free: Callable[[int], None], keeps: tuple[object, ...], n_forks: int) -> None:
    del keeps  # held until here so that what this object needs is freed after it
    _open.pop(serial, None)
    if n_forks == _n_forks:
        free(address)


@atexit.register
def _free_all() -> None:
    global _exited  # noqa: PLW0603 - a process-wide fact
    _exited = True
    if not _open or (_n_forks == 0 and lib().pys_leave(_LEAVE_MILLISECONDS) > 0):
        return
    for finalizer in reversed(list(_open.values())):
        finalizer()


class Handle:
    """Owner of one native object.

    Args:
        address: The native object.
        free: Frees it; called at most once.
        what: Name for messages, such as "context".
        keeps: Objects that must not be freed before this one.
        thread_bound: Whether only the creating thread may use it.
    """

    __slots__ = ("_broken", "_n_forks", "_native", "_thread", "_what")

    def __init__(
        self,
        address: int,
        free: Callable[[int], None],
        *,
        what: str,
        keeps: tuple[object, ...] = (),
        thread_bound: bool = False,
    ) -> None:
        self._native: _Native | None = _Native(address, free, keeps)
        self._what = what
        self._n_forks = _n_forks
        self._thread = threading.get_ident() if thread_bound else None
        self._broken = ""

    @property
    def pointer(self) -> ctypes.c_void_p:
        """The address, after checking that it may be used here and now.

        Raises:
            ClosedError, ForkedError, WrongThreadError, BrokenError
        """
        native = self._native
        if native is None or _exited:
            msg = f"This {self._what} is closed."
            raise ClosedError(msg)
        if self._n_forks != _n_forks:
            msg = f"This {self._what} was made before fork(); make a new one in the child process."
            raise ForkedError(msg)
        if self._thread is not None and self._thread != threading.get_ident():
            if self._thread != _NEXT_THREAD:
                msg = f"This {self._what} belongs to the thread that created it; use it there or create one per thread."
                raise WrongThreadError(msg)
            self._thread = threading.get_ident()
        if self._broken:
            msg = f"This {self._what} failed an internal check of llama.cpp and cannot be used again: {self._broken}"
            raise BrokenError(msg)
        return native

    def __copy__(self) -> NoReturn:
        msg = f"A {self._what} cannot be copied or pickled: it belongs to this process."
        raise TypeError(msg)

    def __deepcopy__(self, _memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()

    def require_usable(self) -> None:
        """Raise what ``pointer`` would raise."""
        _ = self.pointer

    def hand_over(self) -> None:
        """Let go of a thread-bound handle: it will belong to the next thread that uses it."""
        _ = self.pointer
        if self._thread is not None:
            self._thread = _NEXT_THREAD

    @property
    def closed(self) -> bool:
        return self._native is None

    @property
    def keep_alive(self) -> _Native | None:
        """What a view of native memory must refer to."""
        return self._native

    def check(self, status: int, doing: str = "") -> None:
        """``status.check`` for a call on this handle; a failed assertion makes the handle unusable."""
        if not status:
            return
        try:
            check(status, doing)
        except Exception as error:
            if status == Status.ASSERT:
                self._broken = str(error)
                self._abandon()
            raise

    def close(self) -> None:
        """Let go of the native object. May be called again, from any thread."""
        self._native = None

    def _abandon(self) -> None:
        # After a failed assertion the object's state is unknown: leaking it is safer than freeing it.
        if self._native is not None:
            self._native.finalizer.detach()  # stays in _open, but a detached finaliser does nothing


def array_interface(owner: object, address: int, shape: tuple[int, ...], typestr: str) -> Any:
    """Return an object from which numpy makes a read-only view of native memory that keeps its owner alive."""
    return _View(owner, address, shape, typestr)


class _View:
    __slots__ = ("__array_interface__", "__weakref__", "_keep_alive")

    def __init__(self, keep_alive: object, address: int, shape: tuple[int, ...], typestr: str) -> None:
        self._keep_alive = keep_alive
        self.__array_interface__ = {"data": (address, True), "shape": shape, "typestr": typestr, "version": 3}
