"""A tokenizer trained on the texts, for a model whose own is missing: WordPiece for BERT and its kin, else BPE."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from opanatomy.errors import UsageError
from opanatomy.options import TEXTS

#: Tokens of a trained vocabulary at most, as many as those of BERT.
_MAX_TOKENS: Final = 30_000
#: What transformers calls the tokenizers that are WordPiece.
_WORDPIECE: Final = frozenset(
    f"{name}Tokenizer"
    for name in ("Bert", "DistilBert", "Electra", "MPNet", "MobileBert", "Lxmert", "Funnel", "SqueezeBert", "ConvBert")
)
#: The part that a special token plays, which the configuration may have an id for -> its text in both forms.
_SPECIAL_OF_WORDPIECE: Final = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_SPECIAL_OF_BPE: Final = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}


def trained_tokenizer(config: Any, texts: Sequence[str], vocabulary: int) -> Any:
    """A fast tokenizer of transformers with `vocabulary` tokens at most, the special ones where `config` has them."""
    from transformers import PreTrainedTokenizerFast

    wordpiece = is_wordpiece(str(config.model_type))
    special = _SPECIAL_OF_WORDPIECE if wordpiece else _SPECIAL_OF_BPE
    core = _trained(texts, min(vocabulary, _MAX_TOKENS), tuple(special.values()), wordpiece=wordpiece)
    if core.get_vocab_size() > vocabulary:
        raise UsageError(
            f"{TEXTS.flags[-1]}: a vocabulary of {vocabulary} is too small for a tokenizer of these texts, which needs"
            f" {core.get_vocab_size()} - give a larger --set vocab_size"
        )
    core = _with_ids(core, _placed(core.get_vocab(), _reserved(config, special, vocabulary)), wordpiece=wordpiece)
    core.post_processor = _template(core, config, wordpiece=wordpiece)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, model_max_length=10**9, **{f"{part}_token": text for part, text in special.items()}
    )


def is_wordpiece(model_type: str) -> bool:
    """Whether the models of this type have WordPiece tokenizers."""
    from transformers.models.auto import tokenization_auto

    names = tokenization_auto.TOKENIZER_MAPPING_NAMES.get(model_type)
    every = names if isinstance(names, tuple) else (names,)  # transformers 4 has a slow and a fast one
    return bool(_WORDPIECE.intersection(every))


def _trained(texts: Sequence[str], size: int, special: tuple[str, ...], *, wordpiece: bool) -> Any:
    """The core of a tokenizer, its special tokens first; the same for the same texts."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    if wordpiece:
        core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        core.normalizer = normalizers.BertNormalizer(lowercase=True)
        core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        core.decoder = decoders.WordPiece()
        texts, letters = _within_alphabet([core.normalizer.normalize_str(text) for text in texts], max(size // 3, 1))
        # Its trainer numbers the letters inside words as it meets them in a hash table: those numbers break ties.
        first = [*special, *letters, *(f"##{letter}" for letter in letters)]
        trainer: Any = trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    else:
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False)
    core.train_from_iterator(iter(texts), trainer)
    return core


def _within_alphabet(texts: Sequence[str], size: int) -> tuple[list[str], list[str]]:
    """The texts in their most usual letters alone, `size` at most, and these."""
    counts = Counter(chain.from_iterable(texts))
    usual = sorted(counts, key=lambda letter: (-counts[letter], letter))
    letters = sorted([letter for letter in usual if not letter.isspace()][:size])
    rare = {ord(letter): " " for letter in counts.keys() - set(letters)}
    return [text.translate(rare) for text in texts], letters


def _reserved(config: Any, special: Mapping[str, str], vocabulary: int) -> dict[str, int]:
    """The ids that the configuration has for special tokens; of two tokens with one id the first keeps it."""
    reserved: dict[str, int] = {}
    for part, text in special.items():
        number = getattr(config, f"{part}_token_id", None)
        number = number[0] if isinstance(number, (list, tuple)) and number else number
        if isinstance(number, int) and 0 <= number < vocabulary and number not in reserved.values():
            reserved[text] = number
    return reserved


def _placed(tokens: Mapping[str, int], reserved: Mapping[str, int]) -> dict[str, int]:
    """The tokens with ids of their own: the reserved ones, the others in their order on what is free."""
    taken = set(reserved.values())
    free = iter(number for number in range(len(tokens) + len(taken)) if number not in taken)
    others = sorted((number, token) for token, number in tokens.items() if token not in reserved)
    return {**reserved, **{token: next(free) for _, token in others}}


def _with_ids(core: Any, tokens: Mapping[str, int], *, wordpiece: bool) -> Any:
    """The tokenizer with other ids."""
    from tokenizers import Tokenizer, models

    model = json.loads(core.to_str())["model"]
    if wordpiece:
        again = Tokenizer(models.WordPiece(vocab=dict(tokens), unk_token="[UNK]"))
    else:
        pairs: Any = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        again = Tokenizer(models.BPE(vocab=dict(tokens), merges=pairs))
    again.pre_tokenizer, again.decoder = core.pre_tokenizer, core.decoder
    if core.normalizer is not None:
        again.normalizer = core.normalizer
    return again


def _template(core: Any, config: Any, *, wordpiece: bool) -> Any:
    """What a text begins and ends with: `[CLS]` and `[SEP]`, what an encoder's configuration has, else nothing."""
    from tokenizers import processors

    before, after = ("[CLS]", "[SEP]") if wordpiece else _ends(config)
    parts = [*([f"{before}:0"] if before else []), "$A:0", *([f"{after}:0"] if after else [])]
    ids = [(token, core.token_to_id(token)) for token in (before, after) if token]
    return processors.TemplateProcessing(single=" ".join(parts), special_tokens=ids)


def _ends(config: Any) -> tuple[str | None, str | None]:
    from transformers.models.auto import modeling_auto

    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if not getattr(config, "is_encoder_decoder", False) and config.model_type not in masked:
        return None, None
    begins = getattr(config, "bos_token_id", None) is not None
    ends = getattr(config, "eos_token_id", None) is not None
    return "<s>" if begins else None, "</s>" if ends else None
