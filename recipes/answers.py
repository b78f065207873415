"""Chats that a Llama-like target writes on a CUDA device: a thousand at once, each in a row of one static memory.

A row reads and writes at its own position, so a finished chat is replaced at once. A step of all rows is one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from draftwood.train.chat_files import Chat
from draftwood.train.chats import OpenChat, Turns

_STEPS: Final = 8  # between two looks for finished rows


@final
class Rows:
    """Rows of a static memory of keys and values, and a step that appends a sampled token to each.

    Args:
        model: a Llama-like causal model of transformers, in bfloat16.
        rows: how many.
        longest: tokens of a row, at most; a multiple of 8.
    """

    def __init__(self, model: Any, rows: int, longest: int) -> None:
        config = model.config
        self.model, self.longest = model, longest
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        device = model.device
        shape = (config.num_hidden_layers, 2, rows, self.kv_heads, longest, self.dim)
        self.memory = torch.zeros(shape, dtype=model.dtype, device=device)
        self.last = torch.zeros(rows, dtype=torch.long, device=device)
        self.at = torch.zeros(rows, dtype=torch.long, device=device)  # position of the last token
        self.temperature = torch.ones(rows, device=device)
        self.floor = torch.zeros(rows, device=device)  # least probability, as a share of the likeliest token's
        self.recent = torch.zeros(_STEPS, rows, dtype=torch.long, device=device)
        self._graph: Any = None

    def begin(
        self, rows: Sequence[int], texts: Sequence[Sequence[int]], temperatures: Sequence[float], floors: Sequence[float]
    ) -> None:
        """Read texts of at least two tokens into rows; padding is written beyond their ends, where it is never seen."""
        device, width = self.last.device, max(map(len, texts)) - 1
        padded = torch.tensor([[*text[:-1], *[0] * (width - len(text) + 1)] for text in texts], device=device)
        at = torch.tensor(rows, device=device)
        self._forward(padded, torch.arange(width, device=device).expand(len(texts), -1), at)
        self.last[at] = torch.tensor([text[-1] for text in texts], device=device)
        self.at[at] = torch.tensor([len(text) - 1 for text in texts], device=device)
        self.temperature[at] = torch.tensor(temperatures, device=device)
        self.floor[at] = torch.tensor(floors, device=device)

    def write(self) -> np.ndarray[Any, Any]:
        """The next tokens [step, row] of all rows."""
        if self.last.device.type != "cuda":
            self._steps()
        elif self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            kept = [value.clone() for value in (self.last, self.at)]
            self._steps()  # kernels are chosen outside the graph
            for value, before in zip((self.last, self.at), kept, strict=True):
                value.copy_(before)
            with torch.cuda.graph(self._graph):
                self._steps()
            self._graph.replay()
        else:
            self._graph.replay()
        return self.recent.cpu().numpy()

    def _steps(self) -> None:
        for step in range(_STEPS):
            states = self._forward(self.last[:, None], self.at[:, None], None)
            scores = self.model.lm_head(states[:, 0]).float()
            temperature = self.temperature[:, None]
            least = scores.amax(-1, keepdim=True) + temperature * self.floor[:, None].log()
            scores = scores.masked_fill(scores < least, -torch.inf)
            noise = -torch.empty_like(scores).exponential_().log_()  # Gumbel
            drawn = (scores + temperature * noise).argmax(-1)  # the likeliest at temperature 0
            self.last.copy_(drawn)
            self.at.add_(1).clamp_(max=self.longest - 1)
            self.recent[step] = drawn

    def _forward(self, tokens: Tensor, positions: Tensor, rows: Tensor | None) -> Tensor:
        """States [row, token, width] after all layers, of whole texts in these rows, or of one token in every row."""
        base = self.model.model
        x = base.embed_tokens(tokens)
        cos, sin = (part.unsqueeze(1) for part in base.rotary_emb(x, positions))
        seen = torch.arange(self.longest, device=x.device) <= positions[:, :1]
        mask = torch.zeros_like(seen, dtype=x.dtype).masked_fill_(~seen, -torch.inf)[:, None, None]
        for layer, (keys, values) in zip(base.layers, self.memory, strict=True):
            normed, attention = layer.input_layernorm(x), layer.self_attn
            q, k, v = (
                product(normed).unflatten(-1, (-1, self.dim)).transpose(1, 2)
                for product in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            q, k = (part * cos + _turned(part) * sin for part in (q, k))
            if rows is None:
                at = positions[:, :, None, None].expand(-1, self.kv_heads, 1, self.dim)
                keys.scatter_(2, at, k)
                values.scatter_(2, at, v)
                q = q.unflatten(1, (self.kv_heads, -1)).squeeze(3)  # heads that share keys are queries of one product
                shape = (len(q), *q.shape[1:3], self.longest)
                found = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask.expand(shape))
                found = found.flatten(1)[:, None]
            else:
                keys[rows, :, : k.shape[2]], values[rows, :, : k.shape[2]] = k, v
                k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
                found = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + attention.o_proj(found)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        states: Tensor = base.norm(x)
        return states


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


@torch.inference_mode()
def write(rows: Rows, chats: Turns) -> Iterator[Chat]:
    """Finished chats; an endless iterator."""
    count, ends = len(rows.last), np.array(sorted(chats.template.ends))
    jobs: list[OpenChat | None] = [None] * count
    turns: list[list[int]] = [[] for _ in range(count)]
    waiting = [chats.begin() for _ in range(count)]
    free = list(range(count))
    while True:
        begun = [(row, waiting.pop() if waiting else chats.begin()) for row in free]
        for start in range(0, len(begun), 128):
            part = begun[start : start + 128]
            rows.begin(
                [row for row, _ in part],
                [job.tokens for _, job in part],
                [job.sampling.temperature for _, job in part],
                [job.sampling.min_p for _, job in part],
            )
        for row, new in begun:
            jobs[row], turns[row] = new, []
        free = []
        recent = rows.write().T  # [row, step]
        ended = np.isin(recent, ends)
        for row in range(count):
            job = jobs[row]
            assert job is not None
            left = chats.limit(job) - len(turns[row])
            stop = int(ended[row].argmax()) + 1 if ended[row].any() else len(recent[row]) + 1
            turns[row] += recent[row, : min(stop, left)].tolist()
            if min(stop, left) > recent.shape[1]:
                continue
            free.append(row)
            job.add(turns[row], written=True)
            if chats.goes_on(job):
                waiting.append(job)
            else:
                yield chats.end(job)
