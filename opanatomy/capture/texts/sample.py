"""Texts that the project brings with it: original comments of one word to some hundred, always the same ones.

Their lengths are lognormal, as those of comments and reviews are: most are short, a few are long, and what pads all to
the longest computes mostly padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random
from statistics import NormalDist
from typing import Final

COUNT: Final = 1024
#: Words of the middle text, and the deviation of the logarithm.
_MEDIAN_WORDS: Final = 8.5
_DEVIATION: Final = 1.15
_SEED: Final = 20_261_122
#: A sentence has no more words than that before its next part begins a new one.
_SENTENCE_WORDS: Final = 14

_ONE_WORD: Final = ("Thanks!", "Agreed.", "Why?", "Lovely.", "Sold.", "Nope.", "Again?", "Perfect!")
_OPENERS: Final = (
    "We arrived late", "Nobody answered the door", "It rained all week", "The kitchen was tiny", "I fixed it myself",
    "My sister disagrees", "They moved the stop", "The second edition is better", "You can skip the museum",
    "Our train broke down", "The battery lasts two days", "Someone left a note", "Prices doubled since spring",
    "The choir sang outside", "I returned it twice", "Her answer was short", "The garden is open", "This recipe works",
    "He painted the fence", "Few people noticed",
)  # fmt: skip
_PARTS: Final = (
    "near the old harbour", "although the map said otherwise", "with three suitcases and a cello",
    "because the bridge was closed", "before breakfast", "for less than a bus ticket", "and the neighbours laughed",
    "while the soup went cold", "on the way to the lighthouse", "as far as I remember", "under a leaking roof",
    "without a single complaint", "after the long winter", "so we stayed another night", "between two noisy markets",
    "just as the manual promised", "to everyone's surprise", "until the lamp flickered", "in a borrowed raincoat",
    "which explains the smell", "at half the advertised speed", "but the tea was excellent", "since last September",
    "despite the blue paint", "like a clock without hands", "from the seventh floor", "where the orchard used to be",
    "and nobody asked for a receipt", "over a cup of weak coffee", "if the weather holds", "past the empty bakery",
    "along the northern river path",
)  # fmt: skip
_ADVERBS: Final = ("quietly", "usually", "almost", "barely", "twice", "together", "finally", "perhaps")


def sample() -> tuple[str, ...]:
    """The texts, in an order that has nothing to do with their lengths."""
    draw = Random(_SEED)
    normal = NormalDist()
    places = sorted(range(COUNT), key=lambda _: draw.random())
    words = [_MEDIAN_WORDS * exp(_DEVIATION * normal.inv_cdf((place + 0.5) / COUNT)) for place in places]
    return tuple(_text(draw, max(round(count), 1)) for count in words)


def _text(draw: Random, words: int) -> str:
    """A text of about that many words."""
    if words <= 1:
        return _one_of(draw, _ONE_WORD)
    sentences: list[str] = []
    written = 0
    while written < words:
        sentence = _sentence(draw, words - written)
        sentences.append(sentence)
        written += len(sentence.split())
    return " ".join(sentences)


def _sentence(draw: Random, words: int) -> str:
    """An opener and as many parts as there are words left for."""
    parts = [_one_of(draw, _OPENERS)]
    written = len(parts[0].split())
    while written < min(words, _SENTENCE_WORDS):
        part = _one_of(draw, _PARTS)
        if draw.random() < 0.2:
            part = f"{_one_of(draw, _ADVERBS)} {part}"
        parts.append(part)
        written += len(part.split())
    comma = ", " if draw.random() < 0.3 else " "
    return comma.join(parts) + ("!" if draw.random() < 0.1 else ".")


def _one_of(draw: Random, choices: Sequence[str]) -> str:
    return choices[int(draw.random() * len(choices))]
