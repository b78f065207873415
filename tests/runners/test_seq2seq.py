"""Rung 4 for encoder-decoder models: the scores of a tree are those of one teacher-forced forward per path, and what cannot
work is refused by name."""

import random
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig

from draftwood.core.errors import CacheError, ConfigError, ModelError
from draftwood.runners.factory import make_runners
from draftwood.runners.protocols import Runner
from draftwood.runners.seq2seq import bart_decoder
from draftwood.runners.seq2seq.bart_decoder import BartDecoder
from draftwood.runners.seq2seq.runner import PatchedDecoder, Seq2SeqRunner, _RelativeBias
from draftwood.runners.seq2seq.source import check_encoder_decoder
from draftwood.runners.slots import SlotTable
from tests.differences import difference
from tests.helpers import ancestors_of, at_roots, begin, rows_of
from tests.runners.seq2seq_zoo import ABSOLUTE, OTHERS, PAD, RELATIVE, SUPPORTED, VOCAB, plain_scores, tiny
from tests.runners.test_logit_identity import Walk

BART = [kind for kind in ABSOLUTE if kind != "blenderbot-small"]  # that one has its first norm in another place


def tolerance(kind):
    return 1e-4 if kind in RELATIVE else 1e-9  # their norms are float32 whatever the model is


def runner_of(kind, *, drafts=False, **settings):
    return Seq2SeqRunner(tiny(kind, **settings), drafts=drafts)


class SourceWalk(Walk):
    """Random trees over random sources."""

    def __init__(self, runner, lengths, seed=0, sources=None):
        self.runner, self.rng = runner, random.Random(seed)
        texts, roots = [self._tokens(n) for n in lengths], self._tokens(len(lengths))
        read = [self._tokens(n) for n in sources or [3 + 2 * i for i in range(len(lengths))]]
        self.rows = begin(runner, texts, read, roots)

    def _tokens(self, count):
        return [t + (t >= PAD) for t in (self.rng.randrange(VOCAB - 1) for _ in range(count))]

    def _wanted(self, row, path):
        return plain_scores(self.runner.model, self.rows[row].source, self.texts[row] + path)

    def add(self, lengths, sources=None):
        texts, new = ([self._tokens(n) for n in some] for some in (lengths, sources or [20, 4][: len(lengths)]))
        self.rows = [*self.rows, *rows_of(texts, new, self._tokens(len(texts)))]
        self.runner.set_rows(self.rows)


def with_decoder(model, kind):
    """A runner with this decoder, whatever it would choose."""
    runner = Seq2SeqRunner(model, check=False)
    runner._use(kind, check=False)
    return runner


@pytest.mark.parametrize("kind", SUPPORTED)
def test_a_tree_is_scored_as_its_paths_in_every_round(kind):
    runner = runner_of(kind)
    assert isinstance(runner, Runner)
    assert SourceWalk(runner, [5, 0, 30], sources=[6, 1, 17]).come_and_go() < tolerance(kind)
    assert runner.forward_seconds > 0
    assert isinstance(runner._decoder, BartDecoder if kind in BART else PatchedDecoder)


@pytest.mark.parametrize("kind", BART)
def test_the_models_own_forward_with_the_positions_of_the_tree(kind):
    assert SourceWalk(with_decoder(tiny(kind), PatchedDecoder), [5, 1, 9]).come_and_go() < tolerance(kind)


@pytest.mark.parametrize("kind", ["marian", "t5"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_both_attention_implementations(kind, implementation):
    model = tiny(kind)
    model.set_attn_implementation(implementation)
    for runner in (Seq2SeqRunner(model), with_decoder(model, PatchedDecoder)):
        walk = SourceWalk(runner, [3, 6])
        assert max(walk.round(), walk.round()) < tolerance(kind)


@pytest.mark.parametrize("kind", ["marian", "m2m_100", "t5"])
def test_texts_longer_than_one_chunk_and_farther_than_the_last_bias(kind):
    settings = {} if kind == "t5" else {"max_position_embeddings": 800}
    walk = SourceWalk(runner_of(kind, **settings), [3, 700, 515])
    assert max(walk.round(nodes=4), walk.round(nodes=4)) < tolerance(kind)
    walk.keep([0, 2])
    assert walk.round(nodes=4) < tolerance(kind)


@pytest.mark.parametrize("kind", ["marian", "bart", "m2m_100"])
def test_the_last_tokens_of_the_positions_are_exact(kind):
    walk = SourceWalk(runner_of(kind, max_position_embeddings=32), [28, 30])
    assert walk.runner.max_length == walk.runner.max_source == 32
    tokens, depths = torch.tensor([[4, 5, 6]] * 2), torch.tensor([[0, 1, 2]] * 2)
    ancestors = torch.ones(2, 3, 3, dtype=torch.bool).tril()
    scores = walk.runner.extend(tokens, depths, ancestors).logits  # row 1 has no position 32: that node is never used
    for row, nodes in ((0, 3), (1, 2)):
        for node in range(nodes):
            assert torch.allclose(scores[row, node], walk._wanted(row, tokens[row, : node + 1].tolist()), atol=1e-9)


@pytest.mark.parametrize("chosen", [BartDecoder, PatchedDecoder])
def test_the_source_is_read_once(chosen):
    model = tiny("marian")
    runner, calls = with_decoder(model, chosen), []
    model.get_encoder().register_forward_hook(lambda *_: calls.append("encoder"))
    run = runner._decoder._model if chosen is PatchedDecoder else model
    for layer in run.get_decoder().layers:
        layer.encoder_attn.k_proj.register_forward_hook(lambda *_: calls.append("keys"))
    walk = SourceWalk(runner, [3, 6, 1])
    for _ in range(3):
        walk.round(check=False)
    walk.keep([0, 2])
    walk.round(check=False)
    assert calls.count("encoder") == 1
    assert calls.count("keys") == (len(model.get_decoder().layers) if chosen is PatchedDecoder else 0)


@pytest.mark.parametrize("kind", ["marian", "t5"])
def test_the_users_model_stays_as_it_was(kind):
    model = tiny(kind)
    before = {name: id(part) for name, part in model.named_modules()}
    source, text = [5, 6, 7, 3], [2, 8, 9, 10]
    scores = plain_scores(model, source, text)
    walk = SourceWalk(with_decoder(model, PatchedDecoder), [4, 7])
    walk.round()
    assert {name: id(part) for name, part in model.named_modules()} == before
    assert torch.equal(plain_scores(model, source, text), scores)


# ---- what is refused ----


@pytest.mark.parametrize("kind", OTHERS)
def test_decoders_that_cannot_read_a_tree_are_refused_by_name(kind):
    said = rf"'{kind}' cannot score a draft tree over a source: .*{OTHERS[kind]}.*\. Use a text-to-text model"
    with pytest.raises(ModelError, match=said):
        Seq2SeqRunner(tiny(kind))
    with pytest.raises(ModelError, match=f"^the draft: model type {said}"):
        make_runners(tiny("marian"), tiny(kind), backend="torch")


def test_a_decoder_of_unknown_structure_is_refused_by_name():
    model = tiny("marian")
    model.get_decoder().layers = torch.nn.Sequential(*model.get_decoder().layers)
    with pytest.raises(
        ModelError, match=r"'marian' .*: its decoder has an unknown structure \(.* has no list of layers\)\. Use a"
    ):
        Seq2SeqRunner(model)


@pytest.mark.parametrize(("kind", "reason"), [
    ("prophetnet", "several tokens at once"), ("switch_transformers", "experts drop tokens"),
    ("bigbird_pegasus", "original_full"), ("whisper", "reads input_features, not text"),
    ("gpt2", "is not an encoder-decoder model"), ("marian", "recurrent state"), ("bart", "no language-model head"),
])  # fmt: skip
def test_architectures_without_trees_are_refused_by_name(kind, reason):
    read, states = "input_features" if kind == "whisper" else "input_ids", kind == "marian"
    model = SimpleNamespace(config=AutoConfig.for_model(kind), main_input_name=read, _is_stateful=states)
    model.get_output_embeddings = lambda: None if kind == "bart" else model
    with pytest.raises(ModelError, match=rf"'{kind}' cannot score a draft tree over a source: .*{reason}"):
        check_encoder_decoder(model)


def test_sources_and_texts_that_do_not_fit_are_refused_with_their_numbers():
    runner = runner_of("marian", max_position_embeddings=16)
    assert runner.max_length == runner.max_source == 16
    with pytest.raises(CacheError, match="source 1 has 17 tokens, but the encoder of marian takes 16"):
        begin(runner, [[], []], [[5], [5] * 17])
    with pytest.raises(ConfigError, match="source 0 is empty"):
        begin(runner, [[]], [[]])
    with pytest.raises(ConfigError, match="source 0 holds token 97, but the encoder knows 0 to 96"):
        begin(runner, [[]], [[5, 97]])
    begin(runner, [[5] * 16], [[5] * 16])
    with pytest.raises(CacheError, match="the text has 17 tokens, but the decoder of marian takes 16"):
        at_roots(runner, [5])


def test_a_draft_model_makes_do_with_what_it_can_read():
    runner = runner_of("marian", drafts=True, max_position_embeddings=16)
    source = list(range(5, 25))
    begin(runner, [[5]], [source])
    wanted = plain_scores(runner.model, source[:16], [5, VOCAB - 1])
    assert torch.allclose(at_roots(runner, [120]).logits[0, 0], wanted, atol=1e-9)
    begin(runner, [[5] * 16], [[120, 6]])  # beyond its positions, and unknown tokens in the source
    assert at_roots(runner, [120]).logits.isfinite().all()


# ---- negative controls: each breaks one thing that trees need, and must be seen ----


@pytest.mark.parametrize("kind", ["marian", "bart", "mbart", "m2m_100", "t5", "umt5"])
def test_control_positions_that_are_places_in_memory_are_refused(kind, monkeypatch):
    inner = SlotTable._node_batch

    def unpatched(self, tokens, depths, ancestors):
        out = inner(self, tokens, depths, ancestors)
        return out._replace(positions=(out.start + torch.arange(out.tokens.shape[1])).expand(out.tokens.shape))

    monkeypatch.setattr(SlotTable, "_node_batch", unpatched)
    with pytest.raises(ModelError, match=f"'{kind}' cannot score a draft tree: its scores differ"):
        Seq2SeqRunner(tiny(kind))


def test_control_biases_of_the_batchs_first_row_are_refused(monkeypatch):
    place = _RelativeBias.place
    monkeypatch.setattr(
        _RelativeBias, "place",
        lambda self, positions, slots: place(self, positions[:1].expand_as(positions), slots),
    )  # fmt: skip
    with pytest.raises(ModelError, match="its scores differ"):
        Seq2SeqRunner(tiny("t5"))


@pytest.mark.parametrize("kind", ["marian", "t5"])
def test_control_a_runner_that_does_not_move_the_accepted_path(kind):
    walk = SourceWalk(Seq2SeqRunner(tiny(kind)), [5, 1, 9])
    walk.runner._decoder.cache.compact = lambda *_: None
    assert walk.round() < tolerance(kind)  # nothing has been accepted yet
    assert max(walk.round() for _ in range(3)) > 1e-2


@pytest.mark.parametrize("chosen", [BartDecoder, PatchedDecoder])
def test_control_a_drop_of_the_wrong_row_of_the_sources(chosen, monkeypatch):
    walk = SourceWalk(with_decoder(tiny("marian"), chosen), [5, 2, 9], sources=[4, 4, 4])
    walk.round()
    wrong = "draftwood.runners.seq2seq.runner.sources_of"
    monkeypatch.setattr(wrong, lambda known, *_: (known.picked([0, 1]), [0, 1]))
    walk.keep([1, 2])
    assert walk.round() > 1e-2


@pytest.mark.parametrize("kind", ["marian", "bart", "t5"])
def test_a_token_that_is_no_number_changes_no_score_of_what_does_not_see_it(kind):
    model, bad, source, text = tiny(kind), 9, [5, 6, 7], [4, 8, 11]
    model.set_output_embeddings(deepcopy(model.get_output_embeddings()))  # the head stays sound
    with torch.no_grad():
        model.get_decoder().embed_tokens.weight[bad] = torch.nan
    runner = Seq2SeqRunner(model, check=False)
    [row] = begin(runner, [text], [source], [12])
    parents = torch.tensor([[0, 0, 1, 0, 3]])
    seen = ancestors_of(parents, 5)
    found = runner.extend(torch.tensor([[12, bad, 5, 13, bad]]), seen.sum(-1) - 1, seen).logits[0]
    assert found[[1, 2, 4]].isnan().all()
    for node, path in ((0, [12]), (3, [12, 13])):
        assert difference(found[node], plain_scores(model, source, text + path)) < tolerance(kind), "as its siblings"
    row.tokens += [13, 14]
    runner.commit([[0, 3]])
    found = at_roots(runner, [14]).logits[0, 0]
    assert difference(found, plain_scores(model, source, [*text, 12, 13, 14])) < tolerance(kind), "after it was rejected"


def test_control_padding_of_the_source_that_is_seen(monkeypatch):
    for decoder in ("bart_decoder", "runner"):
        monkeypatch.setattr(f"draftwood.runners.seq2seq.{decoder}.padding_bias", lambda mask, dtype: None)
    with pytest.raises(ModelError, match="its scores differ"):
        Seq2SeqRunner(tiny("marian"))


@pytest.mark.parametrize(("kind", "broken"), [
    ("marian", "padding_bias"), ("mbart", "padding_bias"), ("bart", "product"), ("m2m_100", "source_memory"),
])  # fmt: skip
def test_control_a_decoder_that_reads_otherwise_is_not_used(kind, broken, monkeypatch):
    plain = getattr(bart_decoder, broken)
    wrong = {
        "padding_bias": lambda mask, dtype: None,
        "product": lambda x, weights: plain(x, weights) * 1.1,
        "source_memory": lambda layers, states: plain(layers, states).flip(1),
    }
    model = tiny(kind)
    monkeypatch.setattr(bart_decoder, broken, wrong[broken])
    walk = SourceWalk(Seq2SeqRunner(model), [3, 1])
    assert isinstance(walk.runner._decoder, PatchedDecoder)
    assert walk.round() < 1e-9  # the model's own forward scores the text


def test_control_a_decoder_that_looks_ahead_is_refused():
    model = tiny("bart")
    for layer in model.get_decoder().layers:
        layer.self_attn.is_causal = False  # the plain forward of this model has no mask where nothing is padded
    with pytest.raises(ModelError, match="'bart' cannot score a draft tree: its scores differ"):
        Seq2SeqRunner(model)
