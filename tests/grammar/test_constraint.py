"""Masks of a constraint: against an oracle, in any order of nodes, at the end of a text and where nothing is possible."""

import random
from itertools import product

import pytest

from draftwood.core.errors import ConfigError, NumericsError
from draftwood.grammar.constraint import Grammars
from draftwood.grammar.grammar import Grammar
from tests.faults.folders import tiny_tokenizer
from tests.grammar.schemas import compact, items, record
from tests.grammar.tiny import END, PATTERN, TOKENS, VOCAB, legal, letters

GRAMMARS = Grammars(letters(), VOCAB + 2, frozenset([END]))  # two scores more than there are tokens


def constraint(grammar=None, stops=frozenset()):
    return GRAMMARS.constraint(grammar or Grammar.regex(PATTERN), stops)


def tokens_of(mask):
    assert mask is not None
    return mask.nonzero()[0].tolist()


def legal_paths(longest):
    paths = [list(path) for n in range(longest + 1) for path in product(range(VOCAB), repeat=n)]
    return [path for path in paths if all(token in legal(path[:i]) for i, token in enumerate(path))]


def test_masks_are_those_of_the_language_in_any_order_of_nodes():
    paths = legal_paths(4)
    assert len(paths) > 15
    for seed in range(5):
        random.Random(seed).shuffle(paths)
        one = constraint()
        for path in paths:
            assert tokens_of(one.mask(path)) == legal(path), path


MORE = (*TOKENS, "ca", "bb", "cab", "ba")  # several ways to write a text
JSON_TOKENS = (*'{}[]":abc', '{"', '"a', "ab", 'b":', '":[', ':["', "ca", '"]', '"]}', '"c')
NESTED = record({"ab": items({"enum": ["ca", "b"]}, 1, 1)})


@pytest.mark.parametrize(("tokens", "grammar", "words"), [
    (MORE, Grammar.regex("cabab"), ("cabab",)),
    (MORE, Grammar.regex("(ab|bc)ab?"), ("aba", "abab", "bca", "bcab")),
    (MORE, Grammar.lark('start: "a" middle "ab"\nmiddle: "b" | "cab"'), ("abab", "acabab")),
    (MORE, Grammar.lark('%llguidance {}\nstart: "c" "a" "b"'), ("cab",)),
    (("Ã", "©", "Ã©", "¨", "©Ã"), Grammar.regex("éé|è"), ("Ã©Ã©", "Ã¨")),
    (JSON_TOKENS, Grammar.json_schema(compact(NESTED)), ('{"ab":["ca"]}', '{"ab":["b"]}')),
    (JSON_TOKENS, Grammar.lark('start: "c" %json {"enum": ["ab"]}'), ('c"ab"',)),
], ids=["regex", "regex with a choice", "lark", "options in lark", "bytes", "json", "json in lark"])  # fmt: skip
def test_every_token_of_the_only_text_that_is_left_may_come(tokens, grammar, words):
    vocab = 1 + len(tokens)
    one = Grammars(letters(tokens), vocab, frozenset([END])).constraint(grammar, frozenset())
    paths = [[]]
    for path in paths:
        allowed = legal(path, words, tokens)
        assert one.mask(path).nonzero()[0].tolist() == allowed, [tokens[token - 1] for token in path]
        paths += [[*path, token] for token in allowed if token != END]
    assert len(paths) > 2 * max(map(len, words))


def test_masks_of_a_text_that_grows_are_those_of_the_same_path():
    for text in legal_paths(4):
        for cut in range(len(text) + 1):
            one = constraint()
            one.mask([2, 2])  # forgotten when the text grows
            one.commit([9, 9, *text[:cut]], 2)
            mask = one.mask(text[cut:])
            assert mask.shape == (VOCAB + 2,)
            assert tokens_of(mask) == legal(text)


def test_what_the_grammar_forbids_has_no_mask_and_is_an_error_in_a_text():
    one = constraint()
    assert [one.mask(path) for path in ([3], [3, 1], [1, 1])] == [None] * 3
    assert tokens_of(one.mask([1])) == legal([1])
    with pytest.raises(NumericsError, match=r"does not follow the regular expression 'a\(b"):
        one.commit([3], 0)


def test_after_the_end_only_the_end_is_possible():
    one = constraint()
    one.commit([4, 0], 0)
    assert tokens_of(one.mask([])) == tokens_of(one.mask([0, 0])) == [0]
    one.commit([4, 0, 0], 0)
    assert one.permitted([0, 0, 1]) == 2
    assert one.forced() == []


@pytest.mark.parametrize(
    ("guess", "most"),
    [([], 0), ([1, 2], 2), ([1, 2, 0], 3), ([1, 2, 0, 0, 1], 4), ([1, 1], 1), ([3], 0), ([0], 0), ([4, 0, 2], 2)],
)
def test_guesses_are_permitted_up_to_the_first_forbidden_token(guess, most):
    assert constraint().permitted(guess) == most


def test_forced_tokens_are_those_of_the_only_text_that_may_follow():
    tokenizer = tiny_tokenizer()
    grammars = Grammars(tokenizer, len(tokenizer), frozenset([END]))
    one = grammars.constraint(Grammar.regex("(a|b)the fox ran[0-9]"), frozenset())
    assert one.forced() == []
    one.commit(tokenizer("a")["input_ids"], 0)
    assert tokenizer.decode(one.forced()) == "the fox ran"
    one.commit(tokenizer("athe fox ran7")["input_ids"], 0)
    assert one.forced() in ([], [END])


def test_special_stop_tokens_end_the_grammar_and_others_are_text():
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    turn, a = tokenizer.convert_tokens_to_ids(["<turn>", "a"])
    grammars = Grammars(tokenizer, len(tokenizer), frozenset([END]))
    one = grammars.constraint(Grammar.regex("a+"), frozenset([END, turn, a]))
    assert tokens_of(one.mask([])) == [a]
    assert tokens_of(one.mask([a])) == sorted([END, a, turn])
    plain = grammars.constraint(Grammar.regex("a+"), frozenset())
    assert tokens_of(plain.mask([a])) == sorted([END, a])


def test_a_dead_end_names_the_grammar_and_leaves_other_nodes_alone():
    one = constraint(Grammar.lark('start: "b" | "a" X\nX: /[a-c]+/ & /[x-z]+/'))
    assert tokens_of(one.mask([])) == [1, 2]
    assert tokens_of(one.mask([1])) == []
    assert "the Lark grammar" in str(one.dead_end([1]))
    assert "leaves no token possible" in str(one.dead_end([1]))
    assert tokens_of(one.mask([2])) == [0]
    one.commit([2], 0)
    assert tokens_of(one.mask([])) == [0]


COMPLEX = Grammar.regex("c{1,12}|c{0,12}b(.{1,200}){1,200}(.{1,200}){1,200}x")
"""After "b", a long token that begins with "a" reaches a limit of the library."""
TOO_COMPLEX = "is too complex to follow here: lexer error"


def of_a_long_token():
    tokens = (*TOKENS, "ab" * 60)
    return Grammars(letters(tokens), 1 + len(tokens), frozenset([END]))


def test_a_node_that_is_too_complex_leaves_other_nodes_other_texts_and_later_ones_alone():
    grammars = of_a_long_token()
    one, other = (grammars.constraint(COMPLEX, frozenset()) for _ in range(2))
    assert tokens_of(one.mask([2])) == []
    assert TOO_COMPLEX in str(one.dead_end([2]))
    assert one.mask([3, 1]) is None
    assert [tokens_of(one.mask(path)) for path in ([], [3], [3] * 12)] == [[2, 3], [0, 2, 3], [0, 2]]
    assert TOO_COMPLEX in str(one.dead_end([2]))
    assert tokens_of(one.mask([3, 2])) == []
    other.commit([3], 0)
    assert tokens_of(other.mask([3])) == [0, 2, 3]
    assert tokens_of(grammars.constraint(COMPLEX, frozenset()).mask([])) == [2, 3]
    one.commit([2], 0)
    assert tokens_of(one.mask([])) == []
    assert TOO_COMPLEX in str(one.dead_end([]))
    one = grammars.constraint(COMPLEX, frozenset())
    assert all(tokens_of(one.mask([*[3] * count, 2])) == [] for count in range(10))
    assert tokens_of(one.mask([3])) == []  # such nodes are not tried for ever
    assert TOO_COMPLEX in str(one.dead_end([3]))


def test_a_text_that_exceeds_a_limit_of_the_parser_says_so():
    one = constraint(Grammar.lark('start: x{0,5000}\nx: y{0,5000}\ny: "a" | "b"'))
    with pytest.raises(NumericsError, match=r"is too complex to follow here: .* items"):
        one.commit([1, 2] * 20, 0)


def test_a_long_text_that_a_grammar_leaves_is_not_guessed_and_spoils_no_mask():
    one = constraint(Grammar.regex("c|b(a{1000}){1000}"))
    one.commit([2], 0)
    assert one.forced() == []
    assert tokens_of(one.mask([])) == tokens_of(one.mask([1] * 9)) == [1]


def test_models_that_cannot_follow_a_grammar_and_grammars_without_a_text_are_refused():
    for tokenizer, eos, said in (
        (None, [0], "needs the model's tokenizer"),
        (object(), [0], "object is none"),
        (letters(), [], "name one: write eos_token_id into"),
    ):
        with pytest.raises(ConfigError, match=said):
            Grammars(tokenizer, VOCAB, frozenset(eos)).constraint(Grammar.regex("a"), frozenset())
    for grammar, said in (
        (Grammar.regex("[^\\s\\S]"), "leaves no token possible"),
        (Grammar.regex("xyz"), "leaves no token possible"),  # the model has no token for it
        (Grammar.json_schema({"$ref": "#"}), "leaves no token possible"),
        (Grammar.lark('start: "a" <|im_end|>'), "unknown special token"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            constraint(grammar)
        assert grammar.name in str(caught.value)


@pytest.mark.parametrize(
    ("options", "admitted"),
    [(None, [0, 1, 2]), ({"whitespace_flexible": False}, [0]), ({"whitespace_flexible": True}, [0, 1, 2, 3]),
     ({"whitespace_pattern": " "}, [0, 1])],
)  # fmt: skip
def test_blanks_of_json_are_bounded_unless_the_schema_says_otherwise(options, admitted):
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    grammar = Grammar.json_schema(schema if options is None else {**schema, "x-guidance": options})
    tokenizer = tiny_tokenizer()
    grammars = Grammars(tokenizer, len(tokenizer), frozenset([END]))
    texts = ['{"a":1}', '{"a": 1}', '{\n    "a": 1\n}', '{"a":' + " " * 41 + "1}"]
    found = []
    for i, text in enumerate(texts):
        ids = [*tokenizer(text)["input_ids"], END]
        if grammars.constraint(grammar, frozenset()).permitted(ids) == len(ids):
            found.append(i)
    assert found == admitted
