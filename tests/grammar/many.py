"""Texts of many generated schemas, checked one by one: ``python -m tests.grammar.many --count 200``; not part of the suite.

The default models are tiny and random, which tries schemas harder than models that know JSON. ``--target`` names others.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import click

import draftwood
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.grammar.grammar import Grammar
from draftwood.sampling.settings import Sampling
from tests.grammar.schemas import items, record
from tests.grammar.test_schemas import pair, valid

NAMES = ["id", "name", "Größe", "a b", "x-y", "tags", "$ref_", "n"]
PATTERNS = ["^[a-f0-9]{4}$", "^(yes|no)$", "^\\d{2}:\\d{2}$", "^[A-Z][a-z]{1,5}$"]
FORMATS = ["date", "uuid", "ipv4", "date-time", "email"]


def schema_of(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A random schema whose texts are short."""
    leaves = [_text, _number, _fixed]
    return rng.choice(leaves if depth > 2 else [*leaves, _object, _object, _array, _either])(rng, depth)


def _text(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(4)
    return rng.choice([
        {"type": "string", "minLength": least, "maxLength": least + rng.randrange(6)},
        {"type": "string", "pattern": rng.choice(PATTERNS)},
        {"type": "string", "format": rng.choice(FORMATS)},
    ])  # fmt: skip


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(-50, 50)
    return {"type": rng.choice(["integer", "integer", "number"]), "minimum": least, "maximum": least + rng.randrange(1, 200)}


def _fixed(rng: random.Random, depth: int) -> dict[str, Any]:
    values = [None, True, 7, -1.5, "red", 'a "quote"', [], {"k": [1]}]
    return {"enum": rng.sample(values, rng.randrange(1, 4))} if rng.random() < 0.7 else {"type": ["boolean", "null"]}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randrange(1, 4))
    needed = [name for name in names if rng.random() < 0.7]
    return record({name: schema_of(rng, depth + 1) for name in names}, needed)


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(2)
    return items(schema_of(rng, depth + 1), least, least + rng.randrange(3))


def _either(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [schema_of(rng, depth + 1) for _ in range(2)]}


def check(models: Pair, schema: dict[str, Any], temperature: float, seed: int, tokens: int) -> str:
    """What became of a schema: valid, length (the text is not finished), refused, or invalid."""
    try:
        grammar = Grammar.json_schema(schema)
    except ConfigError:
        return "refused"
    sampling, limits = Sampling(temperature=temperature, grammar=grammar), Limits(max_new_tokens=tokens)
    found = models.generate("the fox", sampling=sampling, limits=limits, seed=seed)
    plain = models.generate("the fox", sampling=sampling, limits=limits, seed=seed, method={"method": "ar"})
    if found.text != plain.text:
        return "other text than plain decoding"
    if found.finish_reason != "stop":
        return "length"
    return "valid" if valid(found.text, schema) else "invalid"


@click.command()
@click.option("--count", default=200)
@click.option("--seed", default=0)
@click.option("--tokens", default=200, help="the most tokens of a text")
@click.option("--target", default=None, help="a model; default: a tiny random one")
def main(count: int, seed: int, tokens: int, target: str | None) -> None:
    """Print how many schemas ended how, and every schema that went wrong."""
    models = pair() if target is None else draftwood.load(target)
    for temperature in (0.0, 1.0):
        outcomes: Counter[str] = Counter()
        for i in range(count):
            schema = schema_of(random.Random(f"{seed} {i}"))
            outcomes[outcome := check(models, schema, temperature, i, tokens)] += 1
            if outcome not in ("valid", "length", "refused"):
                click.echo(f"{outcome}: {json.dumps(schema)}")
        click.echo(f"temperature {temperature:g}: {dict(outcomes)}")


if __name__ == "__main__":
    main()
