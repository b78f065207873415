"""Texts of the bundled models over backends, methods, verifiers, temperatures and seeds.

``python -m tests.golden.texts FILE`` writes them. ``texts.json`` beside this file was written before the code was
rearranged; ``test_golden.py`` compares.
"""

import json
import sys
from pathlib import Path

import draftwood
from draftwood import LoadOptions, Method

FILE = Path(__file__).with_name("texts.json")
PAIRS = ("torch", "native")  # that run the language pair
PROMPTS = ["Once upon a time", "The little dog was sad because", "Tom and Lily"]
SENTENCES = ["Der Hund schläft im Garten.", "Ich habe heute keine Zeit, weil ich arbeiten muss.", "Wo ist der Bahnhof?"]
NEW_TOKENS = 14
FEWER = ("T=0", "T=0.8 top_k=20 repetition")  # samplings on PyTorch: what cuts and draws is the same as on the native engine
SAMPLING = {
    "T=0": {"temperature": 0},
    "T=1": {"temperature": 1.0},
    "T=0.7 top_p=0.9": {"temperature": 0.7, "top_p": 0.9},
    "T=0.8 top_k=20 repetition": {"temperature": 0.8, "top_k": 20, "repetition_penalty": 1.2},
}
METHODS = [
    {"method": "auto"},
    {"method": "ar"},
    {"method": "ngram"},
    {"method": "chain", "shape": "3"},
    {"method": "iid"},
    {"method": "rsd-c"},
    {"method": "rsd-s"},
    {"method": "rsd-s", "verifier": "traversal"},
    {"method": "rsd-c", "verifier": "traversal"},
    {"method": "dynamic"},
    {"method": "dynamic", "nodes": 8, "verifier": "recursive"},
    {"method": "shared-noise"},
    {"method": "shared-noise", "shape": "2-2-2"},
    {"method": "shared-noise", "nodes": 12},
    {"method": "adaptive"},
]
TOLERANT = [{"method": "rsd-c", "beta": 3, "tau": 1.0}]
TRANSLATING = [
    {"method": "auto"},
    {"method": "ar"},
    {"method": "block", "shape": "6"},
    {"method": "rsd-c", "shape": "2-1-1"},
    {"method": "rsd-s", "shape": "2x3"},
    {"method": "shared-noise", "shape": "2-1-1"},
]


def _name(method):
    return " ".join(str(value) if key in ("method", "verifier") else f"{key}={value}" for key, value in method.items())


def of_pair(backend):
    """Token ids of the language pair's texts: the prompts as a batch, then the first of them alone with another seed."""
    pair = draftwood.load(options=LoadOptions(backend=backend, dtype="float32", profile="none"))
    for sampling in FEWER if backend == "torch" else SAMPLING:
        settings = SAMPLING[sampling]
        for given in METHODS + (TOLERANT if sampling == "T=0" else []):
            method = Method(**given)
            batch = pair.generate(PROMPTS, method=method, seed=5, max_new_tokens=NEW_TOKENS, **settings)
            alone = pair.generate(PROMPTS[0], method=method, seed=91, max_new_tokens=NEW_TOKENS, **settings)
            yield f"pair {backend} {sampling} {_name(given)}", [result.token_ids for result in (*batch, alone)]


def of_translator(backend):
    """Token ids of the translation pair's texts."""
    translator = draftwood.load_translator(options=LoadOptions(backend=backend, dtype="float32"))
    for sampling in ("T=0", "T=1"):
        for given in TRANSLATING + ([{"method": "block", "beta": 3, "tau": 1.0}] if sampling == "T=0" else []):
            results = translator.translate(
                SENTENCES, method=Method(**given), seed=5, max_new_tokens=NEW_TOKENS, **SAMPLING[sampling]
            )
            yield f"translator {backend} {sampling} {_name(given)}", [result.token_ids for result in results]


CASES = [*((of_pair, backend) for backend in PAIRS), (of_translator, "torch")]


def main(path):
    texts = {name: ids for of, backend in CASES for name, ids in of(backend)}
    path.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in texts.items()) + "\n}\n")
    print(f"{len(texts)} settings, {sum(map(len, texts.values()))} texts")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
