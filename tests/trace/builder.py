"""Traces for tests of figures and pages: random small models, drafted from and verified in plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence

from draftwood.trace.records import Choice, Distribution, Node, Part, Trace, TracedRound, Trial

WORDS = [" the", " a", " little", " girl", " named", " Lily", ".", " She", " loved", " to", " play", " outside", ",", " and",
         " he", " saw", " big", " tree", " was", " very", " happy", "\n", " day", " Once"]  # fmt: skip


PROMPT = [4, 1, 0]
SOURCE = "Millionen von Autofahrern werden sich Sorgen um ihre Sicherheit machen."


def top(probs: Sequence[float], count: int = 5) -> Distribution:
    """The likeliest tokens of a distribution that need not sum to 1."""
    total = sum(probs)
    order = sorted(range(len(probs)), key=lambda t: -probs[t])[:count]
    kept = [probs[t] / total for t in order]
    return Distribution(tokens=order, probs=kept, rest=max(0.0, 1 - sum(kept)))


class Maker:
    """Makes the rounds of one text.

    Args:
        seed: of everything random.
        widths: nodes per level.
        verifier: ``recursive`` or ``coupled``.
        agreement: how near the draft's distributions are to the target's, from 0 to 1.
    """

    def __init__(self, seed=0, widths=(3, 3, 3), verifier="recursive", agreement=0.7, words=WORDS, draws=True):
        self.rng, self.widths, self.verifier, self.agreement = random.Random(seed), widths, verifier, agreement
        self.words, self.draws = words, draws

    def distributions(self):
        size = len(self.words)
        target = [self.rng.expovariate(1) ** 3 for _ in range(size)]
        noise = [self.rng.expovariate(1) ** 3 for _ in range(size)]
        draft = [self.agreement * t + (1 - self.agreement) * n for t, n in zip(target, noise, strict=True)]
        return [p / sum(target) for p in target], [p / sum(draft) for p in draft]

    def round(self, number, position, root, end):
        tokens, parents, depths, dists, level = [root], [None], [0], [self.distributions()], [0]
        for width in self.widths if self.draws else ():
            new = []
            for _ in range(width):
                parent = self.rng.choice(level)
                taken = {tokens[n] for n in range(len(tokens)) if parents[n] == parent}
                free = [0 if t in taken else p for t, p in enumerate(dists[parent][1])]
                tokens.append(self.rng.choices(range(len(free)), free)[0])
                parents.append(parent)
                depths.append(depths[parent] + 1)
                dists.append(self.distributions())
                new.append(len(tokens) - 1)
            level = new
        children = [[n for n in range(len(tokens)) if parents[n] == v] for v in range(len(tokens))]
        trials, choices, path, verdicts = [], [], [], {0: "root"}
        verify = {"coupled": self._match, "tolerance": self._tolerate}.get(self.verifier, self._test)
        last, source, changed = verify(tokens, children, dists, trials, choices, path, verdicts)
        nodes = [
            Node(
                token=tokens[n], parent=parents[n], depth=depths[n],
                rank=0 if parents[n] is None else children[parents[n]].index(n),
                target_prob=None if parents[n] is None else dists[parents[n]][0][tokens[n]],
                draft_prob=None if parents[n] is None else dists[parents[n]][1][tokens[n]],
                verdict=verdicts.get(n, "not tried"), target=top(dists[n][0]),
                draft=top(dists[n][1]) if depths[n] < max(depths) else None,
            )
            for n in range(len(tokens))
        ]  # fmt: skip
        made = [tokens[n] for n in path] + [last]
        seconds = {"draft": 0.004 * len(self.widths) * self.draws, "target": 0.02, "verify": 0.001, "other": 0.001}
        return TracedRound(
            number=number, position=position, draw="without_replacement" if self.draws else "point_mass", nodes=nodes,
            trials=trials, choices=choices, path=path, next_token=last, next_from=source, next_is_residual=changed,
            tokens=made, text="".join(self.words[t] for t in made),
            parts=[Part(text=self.words[t], drafted=i < len(path)) for i, t in enumerate(made)],
            seconds=seconds, end=end + sum(seconds.values()),
        )  # fmt: skip

    def _test(self, tokens, children, dists, trials, choices, path, verdicts):
        node = 0
        while True:
            residual, draft = list(dists[node][0]), list(dists[node][1])
            for child in children[node]:
                token = tokens[child]
                q, p = residual[token] / sum(residual), draft[token] / sum(draft)
                uniform = self.rng.random()
                trials.append(
                    Trial(node=child, target_prob=q, draft_prob=p, chance=min(1.0, q / p), uniform=uniform,
                          accepted=uniform < q / p, residual=top(residual), proposal=top(draft))
                )  # fmt: skip
                verdicts[child] = "accepted" if uniform < q / p else "rejected"
                if uniform < q / p:
                    path.append(child)
                    break
                total, sums = sum(residual), sum(draft)
                residual = [max(0.0, a / total - b / sums) for a, b in zip(residual, draft, strict=True)]
                draft[token] = 0.0
            else:
                changed = bool(children[node])
                return self.rng.choices(range(len(residual)), residual)[0], top(residual), changed
            node = child

    def _match(self, tokens, children, dists, trials, choices, path, verdicts):
        node = 0
        while True:
            token = self.rng.choices(range(len(self.words)), dists[node][0])[0]
            choices.append(Choice(node=node, token=token, noise=self.rng.gauss(0, 1), kept=[token]))
            match = [child for child in children[node] if tokens[child] == token]
            for child in children[node]:
                verdicts[child] = "accepted" if child in match else "rejected"
            if not match:
                return token, top(dists[node][0]), False
            node = match[0]
            path.append(node)

    def _tolerate(self, tokens, children, dists, trials, choices, path, verdicts):
        node = 0
        while True:
            target = dists[node][0]
            best = sorted(range(len(target)), key=lambda t: -target[t])[:3]
            kept = [t for t in best if target[t] > target[best[0]] / 2.718]
            choices.append(Choice(node=node, token=best[0], noise=None, kept=kept))
            match = [child for child in children[node] if tokens[child] in kept]
            for child in children[node]:
                verdicts[child] = "accepted" if child in match else "rejected"
            if not match:
                return best[0], top(target), False
            node = match[0]
            path.append(node)

    def trace(self, rounds=5, method="rsd-s"):
        made, end, tokens = [], 0.0, []
        root = 0
        for number in range(rounds):
            made.append(self.round(number, 4 + len(tokens), root, end))
            tokens += made[-1].tokens
            root, end = tokens[-1], made[-1].end
        texts = dict(enumerate(self.words))
        return Trace(
            target="toy target", draft="toy draft", method=method, verifier=self.verifier,
            shape=f"{max(self.widths)}x{len(self.widths)}" if self.draws else None, temperature=1.0, seed=0,
            prompt=PROMPT,
            source=[1, 2] if self.verifier == "tolerance" else [], tokens=tokens,
            prompt_text="".join(self.words[t] for t in PROMPT), source_text=SOURCE * (self.verifier == "tolerance"),
            text="".join(self.words[t] for t in tokens), texts=texts, rounds=made,
        )  # fmt: skip
