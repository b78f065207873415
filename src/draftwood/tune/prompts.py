"""Built-in prompts; no model was trained on them."""

from __future__ import annotations

from itertools import chain, zip_longest

BUILT_IN: dict[str, tuple[str, ...]] = {
    "stories": (
        "Once upon a time, there was a small green frog named Pip. Pip lived by a quiet pond and",
        "One sunny morning, Lily and her brother Sam went to the park with a big yellow kite. The wind",
        "There was a little train who was afraid of the dark tunnel. Every evening, when the lamps were lit,",
        "Ben found a tiny door behind the old bookcase. He knocked three times, and a soft voice said,",
    ),
    "tales": (
        "In a land beyond the seven hills there lived an old king who had three daughters. The youngest",
        "A poor woodcutter once found a silver key beneath the roots of an oak. He took it home to his wife and",
        "Long ago, when the animals could still speak, the fox came to the river and said to the heron,",
        "There was once a miller whose wheel would turn only by moonlight. When the winter came,",
    ),
    "sums": (
        "Question: Mia has 12 apples. She gives 3 apples to each of her 2 friends. How many apples are left?\nAnswer:",
        "Question: A baker sells 15 loaves in the morning and twice as many in the afternoon. How many in all?\nAnswer:",
        "Question: Tom reads 8 pages every day. How many days does he need for a book of 120 pages?\nAnswer:",
        "Question: A bus holds 40 people. 26 people get on, then 9 get off and 12 get on. How many are on it?\nAnswer:",
    ),
}


def built_in(count: int) -> list[str]:
    """The first ``count`` prompts, alternating between the kinds."""
    return [text for text in chain.from_iterable(zip_longest(*BUILT_IN.values())) if text][:count]
