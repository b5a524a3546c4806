"""Finding and building drafters; a stranger's package comes through the same door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pyspec.drafters import Resources, create, names, registry, sorted_by_priority
from pyspec.drafters.ngram_simple import NgramSimple
from pyspec.drafters.nothing import NoDrafter
from pyspec.errors import ConfigError, DrafterError, UnsupportedError
from pyspec.speculation.draft import DraftRequest
from tests.fakes import FakeTarget, HashLogits
from tests.scripted import FakeVocab, fake_model

STRANGER = '''
"""A drafter of another package."""


class Echo:
    name = "echo"

    def __init__(self, *, n_max=2, loud=False):
        self.n_max, self.loud = n_max, loud


class Heavy:
    name = "heavy"
    needs_resources = True

    def __init__(self, *, resources, n_max=2):
        self.resources, self.n_max = resources, n_max


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Unnamed:
    def __init__(self):
        self.n_max = 2

    @property
    def name(self):
        raise Wordless


class Fails:
    def __init__(self):
        raise Wordless


class Odd:
    __signature__ = "none"


number, nothing, text = 3, None, "echo"
'''


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with the drafters echo and heavy, and with some that cannot be imported or built."""
    (tmp_path / "strange_drafters.py").write_text(STRANGER, encoding="utf-8")
    wordless = "class E(Exception):\n    def __str__(self): raise self\nraise E"
    for name, source in {"ending": "raise SystemExit(3)", "interrupt": "raise KeyboardInterrupt"}.items():
        (tmp_path / f"strange_{name}.py").write_text(source, encoding="utf-8")
    (tmp_path / "strange_wordless.py").write_text(wordless, encoding="utf-8")
    info = tmp_path / "strange_drafters-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-drafters\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[pyspec.drafters]\n"
        "echo = strange_drafters:Echo\n"
        "heavy = strange_drafters:Heavy\n"
        "lost = strange_drafters:Lost\n"
        "gone = no_such_module:Gone\n"
        "ends = strange_ending:Ends\n"
        "wordless = strange_wordless:Wordless\n"
        "interrupted = strange_interrupt:Interrupted\n"
        "number = strange_drafters:number\n"
        "nothing = strange_drafters:nothing\n"
        "text = strange_drafters:text\n"
        "odd = strange_drafters:Odd\n"
        "fails = strange_drafters:Fails\n"
        "unnamed = strange_drafters:Unnamed\n"
        "ngram-simple = strange_drafters:Echo\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry._registered.cache_clear()
    yield
    registry._registered.cache_clear()


def test_built_in_drafters_come_through_entry_points() -> None:
    assert {"draft-simple", "ngram-simple", "none"} <= set(names())
    assert isinstance(create("ngram-simple"), NgramSimple)
    assert isinstance(create("none"), NoDrafter)


def test_every_built_in_drafter_can_be_built_or_says_what_it_needs() -> None:
    for name, point in registry._registered().items():
        if point.value.startswith("pyspec."):
            try:
                assert create(name).name == name
            except ConfigError as error:
                assert "build it through pyspec.Engine" in str(error)  # noqa: PT017 - either may happen


@pytest.mark.usefixtures("stranger")
def test_a_strangers_drafter_is_built_like_ours() -> None:
    assert names().index("ngram-cache") < names().index("echo") < names().index("draft-simple")
    echo: Any = create("echo", n_max=5, loud=True)
    assert (echo.n_max, echo.loud) == (5, True)


@pytest.mark.usefixtures("stranger")
def test_a_name_of_ours_stays_ours(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(create("ngram-simple"), NgramSimple)
    (line,) = caplog.messages
    for words in ('"ngram-simple" of strange_drafters:Echo is not used', "pyspec.drafters.ngram_simple:NgramSimple"):
        assert words in line


NOT_IMPORTED = "of .* cannot be imported: [A-Z]"
NOT_BUILT = "cannot be built from strange_drafters:"
USELESS = {
    **dict.fromkeys(("lost", "gone", "ends", "wordless"), NOT_IMPORTED),
    **dict.fromkeys(("number", "nothing", "text", "odd"), NOT_BUILT),
}


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(("name", "words"), USELESS.items())
def test_an_entry_point_that_builds_nothing_says_so(name: str, words: str) -> None:
    for use in (create, registry.option_names, lambda name: registry.longest_draft(name, {})):
        with pytest.raises(DrafterError, match=f"The drafter {name} {words}"):
            use(name)
    assert not registry.is_available(name)


@pytest.mark.usefixtures("stranger")
def test_an_interrupt_passes_while_a_drafter_is_imported() -> None:
    with pytest.raises(KeyboardInterrupt):
        create("interrupted")


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize("name", ["fails", "unnamed"])
def test_what_raises_while_it_is_built_says_so(name: str) -> None:
    with pytest.raises(DrafterError, match=f"The drafter {name} cannot be built: Wordless, which cannot be shown"):
        create(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("ngram-simpel", "Did you mean ngram-simple?"), ("xyzzy", "installed are"), ("", "installed are")],
)
def test_an_unknown_name_gets_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create(name)
    assert hint in str(caught.value)
    assert repr(name) in str(caught.value)


def test_without_any_drafter_the_message_says_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict)
    with pytest.raises(ConfigError, match=r"installed are none\."):
        create("ngram-simple")


def test_an_unknown_option_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"no option 'size_k'; it has size_n, size_m\. Did you mean size_"):
        create("ngram-simple", size_k=4)
    with pytest.raises(ConfigError, match=r"no option 'temperature'; it has size_n, size_m\.$"):
        create("ngram-simple", temperature=4)
    with pytest.raises(ConfigError, match=r"no option 'size_n'; it has none\."):
        create("none", size_n=4)


def test_resources_are_no_option() -> None:
    with pytest.raises(ConfigError, match="build it through pyspec"):
        create("draft-simple", n_max=3)
    resources = cast("Any", object())
    assert isinstance(create("ngram-simple", resources=resources), NgramSimple)  # which needs none


@pytest.mark.usefixtures("stranger")
def test_resources_are_handed_on() -> None:
    thing = cast("Any", object())
    resources = Resources(thing, thing, None, n_sequences=1)
    heavy: Any = create("heavy", resources=resources, n_max=7)
    assert heavy.resources is resources
    assert heavy.n_max == 7


def test_a_draft_model_that_is_missing_is_named() -> None:
    target = cast("Any", FakeTarget(HashLogits(1, 8), 8))
    resources = Resources(fake_model("target.gguf", FakeVocab(8)), target, None, n_sequences=1)
    with pytest.raises(UnsupportedError, match="draft-simple needs a draft model"):
        create("draft-simple", resources=resources)


def test_lookups_are_asked_first_and_strangers_before_draft_models() -> None:
    assert sorted_by_priority(["zebra", "draft-simple", "apple", "ngram-mod", "ngram-simple"]) == [
        "ngram-simple",
        "ngram-mod",
        "apple",
        "zebra",
        "draft-simple",
    ]
    assert sorted_by_priority(reversed(registry.PRIORITY)) == list(registry.PRIORITY)


def test_none_proposes_nothing() -> None:
    drafter = NoDrafter()
    request = DraftRequest(0, [1], 2, 1, 5)
    assert [list(draft.tokens) for draft in drafter.draft([request, request])] == [[], []]
    assert drafter.n_max == 0
