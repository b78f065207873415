"""The words of the field in code, options, fields and prose: a list of private words that must not come back."""

import re
from pathlib import Path

import click
import pytest

from draftwood.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = sorted(path for path in (ROOT / "src" / "draftwood").iterdir() if path.name != "__pycache__")

# Words, in any form of a name: `_law`, `TargetLaw` and "law" are one word.
WORDS = [
    *("law", "laws", "lawful", "lawfully", "judge", "judges", "judged", "judging", "whoever", "beside", "besides", "told"),
    *("foresight", "outlook", "pace", "paced", "pool", "pools", "fan", "fans", "planes", "lineage", "ledger", "movable"),
    *("endings", "subject", "essence", "fingerprint", "fingerprints", "graft", "grafts", "grafted", "lean", "places"),
    "asked",
    *("at hand", "in the mean", "of no use"),
]
# Names as they are written, where the word itself is an ordinary one.
NAMES = r"\b(?:Tell|Looks|Growth|Choices|RoundNoise|Grown)\b|--least\b|\bleast=|\bahead\(|\.chain\("
# Ordinary or technical uses of a listed word, in the normal form of `plain`.
ALLOWED = ["decimal places", "thread pool executor", "process pool executor", "max pool", "significant places"]
ALLOWED += ["actor pool strategy"]


# Fields of files that users have: profiles, stored answers, reports of a training.
FIELDS = r'"(?:fingerprint|places|places_greedy)"'


def plain(text):
    """Lower case, one blank between words; names are taken apart at underscores, hyphens and capitals."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return " ".join(re.sub(r"[_\W]+", " ", text).lower().split())


def found_in(text):
    """The listed words that a text holds, each once. Fields of users' files do not count."""
    text = re.sub(FIELDS, "", text)
    normal = plain(text)
    for phrase in ALLOWED:
        normal = normal.replace(phrase, "")
    words = [word for word in WORDS if re.search(rf"\b{word}\b", normal)]
    return words + sorted(set(re.findall(NAMES, text)))


def own_text(path):
    """The text of a file; a model card without its samples, which are quoted."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"^>.*$", "", text, flags=re.MULTILINE) if path.suffix == ".md" else text


def options(command):
    """The options of a command and of all commands below it."""
    for parameter in command.params:
        yield from parameter.opts
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.resolve_command(context, [name])[1]
            assert inner is not None
            yield from options(inner)


@pytest.mark.parametrize(
    "text",
    ["its own law", "class TargetLaw:", "self._fan = 3", "what is at\nhand", "--least 0.4", "def told(x):", "Tell(x)"],
)
def test_control_a_listed_word_is_found_in_any_form(text):
    assert len(found_in(text)) == 1


@pytest.mark.parametrize(
    "text", ["learn", "flaw", "two decimal places", "space", "at least 3", "ThreadPoolExecutor", '"places"']
)
def test_control_words_that_only_contain_one_are_not(text):
    assert not found_in(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_field(page):
    assert not found_in(page.read_text(encoding="utf-8"))


def test_options_use_the_words_of_the_field():
    names = set(options(main))
    assert len(names) > 90
    assert not [name for name in names if found_in(name)]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_uses_the_words_of_the_field(room):
    paths = [room] if room.is_file() else sorted([*room.rglob("*.py"), *room.rglob("*.md")])
    found = {str(path.relative_to(ROOT)): found_in(own_text(path)) for path in paths}
    assert not {name: words for name, words in found.items() if words}
