"""The two kinds of jobs: what their lines and records are called, and how the records are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from draftwood.cli.job.lines import Line
from draftwood.cli.settings import Kind


@final
@dataclass(frozen=True, kw_only=True)
class Form:
    """A kind of job.

    Attributes:
        noun, verb: words for the lines and the work, as in "3 prompts are answered".
        one, does: the same for a single line, as in "this answers another prompt".
        failed: the result of lines that cannot be used.
        record: a record in errors.
        key: the field with the text of the line.
        whole: the output is written when all lines are done. Until then OUTPUT.partial holds the settings and the records.
            Otherwise the output grows line by line, and every record holds its settings.
    """

    noun: str
    verb: str
    one: str
    does: str
    failed: str
    record: str
    key: str
    whole: bool

    def is_record(self, number: int, found: Any) -> bool:
        """Whether the value in a line, numbered from 0, can be one of the file of records."""
        if not isinstance(found, dict):
            return False
        settings = found.get("settings")
        if self.whole and number == 0:
            return isinstance(settings, dict)
        texts = ("source", "error") if "error" in found else (self.key,)
        known = type(found.get("index")) is int and all(isinstance(found.get(name), str) for name in texts)
        return known and (self.whole or (isinstance(settings, dict) and type(settings.get("seed")) is int))

    def unlike(self, found: Mapping[str, Any], line: Line | None, advice: str) -> str | None:
        """Why a record is not that of the input's line now; None if it is."""
        number = found["index"] + 1
        if line is not None and "error" in found and line.source != found["source"]:
            return (
                f"this is the error of another text than line {number} of the input now holds; remove this line, and the "
                f"{self.one} is {self.verb}"
            )
        if line is None or found.get(self.key, line.text) != line.text:
            return f"this {self.does} another {self.one} than line {number} of the input has; {advice}"
        if "seed" in found:
            seed = line.seed_after(found["settings"]["seed"])
            if found["seed"] != seed:
                return f"this was made with seed {found['seed']}, but the line's seed is now {seed}; {advice}"
        return None


ANSWERS = Form(
    noun="prompts",
    verb="answered",
    one="prompt",
    does="answers",
    failed="their lines say why",
    record="an answer of 'draftwood generate'",
    key="prompt",
    whole=False,
)
TRANSLATIONS = Form(
    noun="lines",
    verb="translated",
    one="sentence",
    does="translates",
    failed="they are left empty",
    record="a translation that 'draftwood translate' keeps",
    key="source",
    whole=True,
)
FORMS: Final[Mapping[Kind, Form]] = {"language": ANSWERS, "translation": TRANSLATIONS}
