"""The registry of methods and verifiers: nothing that belongs to a method may be missing anywhere."""

from dataclasses import replace
from typing import get_args

import pytest

import draftwood
from draftwood.core.draft_kind import CAUSAL
from draftwood.core.errors import ConfigError
from draftwood.core.fit import check_fit, resolve
from draftwood.core.methods import METHODS, MethodName
from draftwood.core.settings import Method
from draftwood.core.shapes import MAX_NODES, Branching, Length, WidthByLength
from draftwood.core.verifiers import VERIFIERS, VerifierName
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import BUILDERS, VERIFIER_BUILDERS, build
from draftwood.sampling.settings import Sampling
from scripts.pages.methods import PAGE, current
from tests.tables import toy

SPECS = pytest.mark.parametrize("spec", METHODS.values(), ids=METHODS)


def draft_for(spec):
    return {"nothing": None, "draft": toy(), "block": toy(MAX_NODES)}[spec.needs]


def test_names_specs_and_builders_are_the_same():
    assert get_args(MethodName) == ("auto", *METHODS)
    assert get_args(VerifierName) == ("auto", *VERIFIERS)
    assert BUILDERS.keys() == METHODS.keys()
    assert VERIFIER_BUILDERS.keys() == VERIFIERS.keys()
    assert draftwood.METHODS is METHODS
    assert draftwood.VERIFIERS is VERIFIERS
    assert "hf" in dir(draftwood)


@SPECS
def test_a_spec_says_what_its_drafter_does(spec):
    drafter, verifier = build(Method(method=spec.name), draft_for(spec), greedy=False)
    assert (drafter.name, drafter.draw) == (spec.name, spec.draw)
    assert verifier.name == spec.verifier in spec.verifiers
    assert bool(spec.shapes) != bool(spec.no_shape)
    assert spec.summary
    assert spec.source


@SPECS
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_exactly_the_verifiers_of_a_spec_are_accepted_as_exact(spec, verifier):
    made = build(Method(method=spec.name, verifier=verifier), draft_for(spec), greedy=False)
    if spec.draw in VERIFIERS[verifier].draws:
        assert Decoder(toy(), *made).pipeline.verifier.lossless == (verifier in spec.verifiers)
    else:
        assert verifier not in spec.verifiers
        with pytest.raises(draftwood.PairingError, match="is not exact for drafter"):
            Decoder(toy(), *made)


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_verifier_is_what_its_spec_says(name):
    spec = VERIFIERS[name]
    made = VERIFIER_BUILDERS[name](resolve(Method(verifier=name), CAUSAL, greedy=True))
    for part in ("name", "draws", "reads", "lossless", "greedy_only"):
        assert getattr(made, part) == getattr(spec, part), part


@SPECS
def test_every_example_and_default_shape_is_one_that_the_method_takes(spec):
    for text in {*spec.shapes.values(), spec.shape} - {None}:
        built = build(Method(method=spec.name, shape=text), draft_for(spec), greedy=False)[0]
        assert (built.name, spec.parse(text).nodes > 0) == (spec.name, True)


@SPECS
def test_a_node_budget_is_taken_by_those_that_say_so_and_refused_by_the_others(spec):
    if spec.takes_nodes:
        build(Method(method=spec.name, nodes=6), draft_for(spec), greedy=False)
    else:
        with pytest.raises(ConfigError, match=rf"^nodes .*{spec.name}"):
            Method(method=spec.name, nodes=6)


@SPECS
def test_a_missing_draft_model_is_named_where_one_is_needed(spec):
    if spec.needs == "nothing":
        assert resolve(Method(method=spec.name), None, greedy=False).verifier == spec.verifier
        return
    wanted = f"'{spec.name}' needs a draft model: give --draft, or use --method ngram or lookup or ar"
    with pytest.raises(draftwood.PairingError, match=wanted):
        build(Method(method=spec.name), None, greedy=False)


@pytest.mark.parametrize(
    ("kind", "text", "shape", "nodes"),
    [
        (Length, "4", Length(4), 4),
        (Length, "1-1-1", Length(3), 3),
        (Length, "2-1", None, 0),
        (Length, "04", None, 0),
        (Branching, "3-2-1", Branching((3, 2, 1)), 15),
        (Branching, "4", Branching((4,)), 4),
        (Branching, "2--2", None, 0),
        (WidthByLength, "3x5", WidthByLength(3, 5), 15),
        (WidthByLength, "3x", None, 0),
        (WidthByLength, "0x3", None, 0),
    ],
)
def test_shapes_are_read(kind, text, shape, nodes):
    found = kind.parse(text)
    assert found == shape
    assert found is None or (found.nodes, found.length) == (nodes, shape.length)


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("chain", "2-2", "does not fit method 'chain': give a length such as 4"),
        ("chain", "", "does not fit method 'chain'"),
        ("shared-noise", "3x", "give branching such as 2-2-2, or width x length such as 4x6"),
        ("ar", "4", "was given, but method 'ar' drafts nothing: leave one of them out"),
        ("rsd-s", "99x99", f"has more than {MAX_NODES} nodes"),
        ("rsd-c", "-".join(["9"] * 1000), f"has more than {MAX_NODES} nodes"),
        ("chain", "9" * 5000, f"has more than {MAX_NODES} nodes"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(name, text, wrong):
    with pytest.raises(ConfigError, match=wrong):
        METHODS[name].parse(text)


def test_the_tables_of_the_documentation_are_current():
    assert PAGE.read_text(encoding="utf-8") == current(), "run python -m scripts.pages"


def test_control_a_table_that_is_not_current_is_seen(monkeypatch):
    monkeypatch.setitem(METHODS, "chain", replace(METHODS["chain"], summary="something else"))
    assert PAGE.read_text(encoding="utf-8") != current()


def refusal(run):
    try:
        run()
    except ConfigError as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("has_draft", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", get_args(MethodName))
def test_what_is_refused_without_models_is_what_the_decoder_refuses(name, temperature, has_draft):
    """Every verifier, kind of shape and node budget; a block draft is the only one whose depth is not known before."""
    draft = toy(MAX_NODES if name == "block" else 0) if has_draft else None
    for verifier in get_args(VerifierName):
        for shape in (None, "4", "3x4", "2-2-2", "9x99", "none"):
            for nodes in (None, 5) if name == "auto" or METHODS[name].takes_nodes else (None,):
                method = Method(method=name, verifier=verifier, shape=shape, nodes=nodes)

                def decode(method=method):
                    made = build(method, draft, greedy=temperature == 0)
                    list(Decoder(toy(), *made).stream([], Sampling(temperature=temperature)))

                before = refusal(lambda method=method: check_fit(method, has_draft=has_draft, temperature=temperature))
                assert before == refusal(decode), method
