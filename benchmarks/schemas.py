"""JSON Schema's official test suite against grammars: a schema is right on every case, or refused with a sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, permutations, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.report import table
from draftwood.core.errors import ConfigError
from draftwood.grammar.grammar import Grammar, guidance

PACKAGE: Final = "jsonschema==4.26.0"
"""Its source archive holds the suite."""
DRAFT: Final = "/json/tests/draft2020-12/"
_MOST: Final = 200  # orders of properties


def suite() -> Iterator[tuple[str, dict[str, Any]]]:
    """The keyword and the group of every schema of the suite; raises ConfigError if it cannot be had."""
    with TemporaryDirectory() as folder:
        command = ["download", "--quiet", "--no-deps", "--no-binary", "jsonschema", "--dest", folder, PACKAGE]
        done = subprocess.run([sys.executable, "-m", "pip", *command], capture_output=True, text=True)
        if done.returncode:
            raise ConfigError(f"pip does not find {PACKAGE}: {done.stderr.strip()[-300:]}")
        with tarfile.open(next(Path(folder).iterdir())) as archive:
            for name in sorted(archive.getnames()):
                if DRAFT in name and name.count("/") == 4 and (file := archive.extractfile(name)) is not None:
                    yield from ((Path(name).stem, group) for group in json.load(file))


def texts(value: Any) -> Iterable[str]:
    """A value as JSON, with its properties in every order: a grammar has one."""
    if isinstance(value, dict):
        pairs = [[f"{json.dumps(key, ensure_ascii=False)}: {text}" for text in texts(inner)] for key, inner in value.items()]
        orders = (chosen for order in permutations(pairs) for chosen in product(*order))
        return (f"{{{', '.join(chosen)}}}" for chosen in islice(orders, _MOST))
    if isinstance(value, list):
        return (f"[{', '.join(chosen)}]" for chosen in islice(product(*map(texts, value)), _MOST))
    return [json.dumps(value, ensure_ascii=False)]


def judge(group: dict[str, Any]) -> tuple[str, list[str], list[str]]:
    """Why a schema is refused, or nothing; values that its grammar takes and should not, and that it should take."""
    try:
        source = Grammar.json_schema(json.dumps(group["schema"])).source()
    except ConfigError as error:
        return str(error).partition(" cannot be used: ")[2].removesuffix(". Change it, or leave it out"), [], []
    tokens = guidance().LLTokenizer("byte")

    def takes(text: str) -> bool:
        matcher, data = guidance().LLMatcher(tokens, source, log_level=0), list(text.encode())
        return matcher.try_consume_tokens(data) == len(data) and bool(matcher.is_accepting())

    wrong: dict[bool, list[str]] = {False: [], True: []}
    for case in group["tests"]:
        if any(map(takes, texts(case["data"]))) != case["valid"]:
            wrong[case["valid"]].append(f"{group['description']}: {case['description']}")
    return "", wrong[False], wrong[True]


def markdown(groups: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """The report: what is wrong, and what is refused."""
    counts, reasons, lines = Counter[str](), Counter[str](), list[str]()
    for keyword, group in groups:
        reason, wide, narrow = judge(group)
        keys = re.findall('"([^"]+)"', reason) if reason.startswith("Unimplemented keys") else []
        reasons.update(keys or [re.sub("Resource .*", "a reference to another document", reason)] * bool(reason))
        counts.update(schemas=1, refused=int(bool(reason)), cases=0 if reason else len(group["tests"]))
        counts.update({"wrong values": len(wide), "right values left out": len(narrow)})
        lines += [f"* {keyword}, {kind}: {one}" for kind, some in (("wrong", wide), ("left out", narrow)) for one in some]
    said = table([*counts], [[str(count) for count in counts.values()]])
    refused = table(["what of a schema is refused", "schemas"], [[why, str(count)] for why, count in reasons.most_common()])
    return "\n".join(["# JSON schemas", "", said, "", *lines, "", refused, ""])
