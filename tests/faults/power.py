"""How often ``draftwood check`` finds each break of the bundled pair: ``python -m tests.faults.power``, and after it, where
wanted, a number of repeats and a part of the lines."""

import sys
from collections import Counter

import draftwood
from draftwood.cli.check import PROMPTS, CheckConfig
from draftwood.core.settings import Method
from draftwood.exactness.report import check, decoder_of
from draftwood.loading.models import LoadOptions
from draftwood.sampling.settings import Sampling
from tests.faults.breaks import BREAKS

METHODS = (
    Method(), Method(method="rsd-s"), Method(method="rsd-s", verifier="traversal"), Method(method="rsd-c"),
    Method(method="rsd-c", verifier="traversal"), Method(method="chain"),
)  # fmt: skip


def main(repeats, only):
    pair = draftwood.load(options=LoadOptions(backend="torch"))
    for method in METHODS:
        for name, broken in {"none": lambda engine: engine, **BREAKS}.items():
            line = f"{method.method} {method.verifier} | {name}"
            if only not in line:
                continue
            found, first = 0, Counter()
            for repeat in range(repeats):
                engine = decoder_of(pair, method, 1.0)  # has learnt nothing yet
                size = CheckConfig()
                report = check(
                    pair, broken(engine), Sampling(), PROMPTS,
                    samples=size.samples, new_tokens=size.new_tokens, seed=1000 * repeat,
                )  # fmt: skip
                found += not report.exact
                worst = min(report.tests, key=lambda test: test.p_value / test.level)
                first[f"{worst.name} ({worst.p_value:.0e})"] += 1
            print(f"{line} | {found} of {repeats} | {dict(first)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2] if len(sys.argv) > 2 else "")
