"""Table runners on a simulated clock."""

import torch

from tests.tables import TableRunner


class ClockedRunner(TableRunner):
    """A runner whose forwards take simulated seconds, and are counted.

    Args:
        now: the time, in seconds; every forward adds to it.
        seconds: of a forward of so many rows and tokens a row.
    """

    def __init__(self, table, now, seconds):
        super().__init__(table)
        self.now, self.seconds, self.forwards = now, seconds, 0

    def extend(self, tokens, depths, ancestors):
        self.forwards += 1
        self.now[0] += self.seconds(*tokens.shape)
        return super().extend(tokens, depths, ancestors)


class LateRunner(ClockedRunner):
    """One that knows a row from its second round on, as drafters of hidden states do."""

    def extend(self, tokens, depths, ancestors):
        found = super().extend(tokens, depths, ancestors)
        found.logits[[not row.has_state(self) for row in self._rows]] = -torch.inf
        return found

    def commit(self, nodes, hidden=None):
        super().commit(nodes, hidden)
        for row in self._rows:
            row.state(self, bool)


def counting(vocab, length, logit):
    """Scores of a text that counts modulo ``length``, or at a small ``logit`` often does."""
    table = torch.zeros(vocab, vocab)
    for token in range(vocab):
        table[token, (token + 1) % length] = logit
    return table
