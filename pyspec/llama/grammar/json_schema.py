"""JSON schemas: the output is a JSON text that the schema accepts."""

from __future__ import annotations

import json
import re
from typing import Any

from pyspec.errors import GrammarError
from pyspec.llama.grammar import lark
from pyspec.llama.grammar.faults import expected, fault

KIND = "JSON schema"
WHITESPACE = r" |\n[ \t]{0,40}"
"""What may stand, once, where JSON allows whitespace: a space, or an end of line with an indent. Models that may
write any amount of it sometimes never stop."""
_GUIDANCE = "x-guidance"  # llguidance's options, as it reads them from the schema
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_FAILED = "failed to compile JSON schema: "


def source(text: str) -> lark.Source:
    """Make the source of a JSON schema.

    Raises:
        GrammarError: The text is not JSON, or no schema.
    """
    schema = _load(text)
    if not isinstance(schema, (dict, bool)):
        raise fault(KIND, text, 0, expected("an object", text, 0))
    if isinstance(schema, dict):
        schema = schema | {_GUIDANCE: _options(schema.get(_GUIDANCE, {}))}
    try:
        json.dumps(schema, ensure_ascii=False).encode()
        body = json.dumps(schema, allow_nan=False)
    except UnicodeEncodeError:
        msg = f"The {KIND} has half of a surrogate pair in a text, which is no character."
        raise GrammarError(msg) from None
    except ValueError:
        msg = f"The {KIND} has a number that is too large."
        raise GrammarError(msg) from None
    return lark.wrap(f"start: %json {body}", lambda message: _explain(text, message))


def to_text(schema: dict[str, Any]) -> str:
    """Return a schema as JSON.

    Raises:
        GrammarError: It holds what JSON cannot.
    """
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"The {KIND} cannot be written as JSON: {error}."
        raise GrammarError(msg) from None


def _load(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda name: _refuse(text, name))
    except json.JSONDecodeError as error:
        wanted = re.match(r"Expecting (.*)", error.msg)
        trouble = expected(wanted[1], text, error.pos) if wanted else error.msg
        raise fault(KIND, text, error.pos, trouble) from None
    except RecursionError:
        raise GrammarError(f"The {KIND} is nested too deeply.") from None
    except GrammarError:
        raise
    except ValueError as error:
        raise GrammarError(f"The {KIND} is wrong: {error}.") from None


def _refuse(text: str, name: str) -> None:
    offset = text.find(name)
    raise fault(KIND, text, offset, expected("a number", text, offset))


def _options(given: Any) -> Any:
    """Return llguidance's options: those of the schema, and ours where it has none."""
    if not isinstance(given, dict):
        return given
    options: dict[str, object] = {"json_allow_general_unicode_escapes": True}
    if not given.keys() & {"whitespace_flexible", "whitespace_pattern"}:
        options["whitespace_pattern"] = WHITESPACE
    return options | given


def _explain(text: str, message: str) -> GrammarError:
    if "recursion limit exceeded" in message:
        return GrammarError(f"The {KIND} is nested too deeply.")
    what = message.split(_FAILED, 1)[-1]
    names = re.search(r"Unimplemented keys: (\[.*\])", what)
    if names:
        keys = json.loads(names[1])
        trouble = "not supported: " + ", ".join(f'"{key}"' for key in keys)
    else:
        keys = re.findall(r"[^\s\"'`]+", what)
        trouble = lark.trouble(what)
    offset = _find(text, keys)
    return lark.without_place(KIND)(what) if offset is None else fault(KIND, text, offset, trouble)


def _find(text: str, words: list[str]) -> int | None:
    """Return where the schema first has one of these words as a string, the earliest word first."""
    places: dict[str, int] = {}
    for found in _STRING.finditer(text):
        places.setdefault(found[0][1:-1].removeprefix("#"), found.start())
    return next((places[word] for word in words if word in places), None)
