"""Choose a model's tokenizer: its own if available, else one trained on the texts; fast or slow (pure Python)."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct

from opanatomy.capture.model.configuration import hub_answers
from opanatomy.capture.silence import one_line, quiet_libraries
from opanatomy.errors import UsageError
from opanatomy.options import TEXTS, TOKENIZER
from opanatomy.records.patterns import regex
from opanatomy.records.workload import ObservedTokenizer

# Train a tokenizer on the texts, for a model without its own: WordPiece for models like BERT, else BPE.


#: Maximum size of a trained vocabulary, as large as BERT's.
_MAX_TOKENS: Final = 30_000
#: The WordPiece tokenizers in transformers.
_WORDPIECE: Final = frozenset(
    f"{name}Tokenizer"
    for name in ("Bert", "DistilBert", "Electra", "MPNet", "MobileBert", "Lxmert", "Funnel", "SqueezeBert", "ConvBert")
)
#: The role of a special token, whose id may be in the configuration -> its text in both forms.
_SPECIAL_OF_WORDPIECE: Final = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_SPECIAL_OF_BPE: Final = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}


def trained_tokenizer(config: Any, texts: Sequence[str], vocabulary: int) -> Any:
    """Return a fast transformers tokenizer with at most `vocabulary` tokens and the special tokens of `config`."""
    from transformers import PreTrainedTokenizerFast
    from transformers.models.auto import tokenization_auto

    names = tokenization_auto.TOKENIZER_MAPPING_NAMES.get(str(config.model_type))
    every = names if isinstance(names, tuple) else (names,)  # transformers 4 has a slow and a fast one
    wordpiece = bool(_WORDPIECE.intersection(every))
    special = _SPECIAL_OF_WORDPIECE if wordpiece else _SPECIAL_OF_BPE
    core = _train(texts, min(vocabulary, _MAX_TOKENS), tuple(special.values()), wordpiece=wordpiece)
    if core.get_vocab_size() > vocabulary:
        raise UsageError(
            f"{TEXTS.flags[-1]}: a vocabulary of {vocabulary} is too small for a tokenizer of these texts, which"
            f" needs {core.get_vocab_size()} - use a larger --set vocab_size"
        )
    core = _with_ids(core, config, special, vocabulary, wordpiece=wordpiece)
    core.post_processor = _template(core, config, wordpiece=wordpiece)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, model_max_length=10**9, **{f"{part}_token": text for part, text in special.items()}
    )


def _train(texts: Sequence[str], size: int, special: tuple[str, ...], *, wordpiece: bool) -> Any:
    """Train a tokenizer core with special tokens first; deterministic for the same texts."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    if wordpiece:
        core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        core.normalizer = normalizers.BertNormalizer(lowercase=True)
        core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        core.decoder = decoders.WordPiece()
        # Only the most common letters are kept.
        texts = [core.normalizer.normalize_str(text) for text in texts]
        counts = Counter(chain.from_iterable(texts))
        usual = sorted(counts, key=lambda letter: (-counts[letter], letter))
        letters = sorted([letter for letter in usual if not letter.isspace()][: max(size // 3, 1)])
        rare = {ord(letter): " " for letter in counts.keys() - set(letters)}
        texts = [text.translate(rare) for text in texts]
        # Its trainer numbers the letters inside words in the order of a hash table: those numbers break ties.
        first = [*special, *letters, *(f"##{letter}" for letter in letters)]
        trainer: Any = trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    else:
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False)
    core.train_from_iterator(iter(texts), trainer)
    return core


def _with_ids(core: Any, config: Any, special: Mapping[str, str], vocabulary: int, *, wordpiece: bool) -> Any:
    """Return the tokenizer with the configuration's ids for special tokens, the others in their order on free ids."""
    from tokenizers import Tokenizer, models

    # The first of two special tokens with one id keeps it.
    reserved: dict[str, int] = {}
    for part, text in special.items():
        number = getattr(config, f"{part}_token_id", None)
        number = number[0] if isinstance(number, (list, tuple)) and number else number
        if isinstance(number, int) and 0 <= number < vocabulary and number not in reserved.values():
            reserved[text] = number
    tokens, taken = core.get_vocab(), set(reserved.values())
    free = iter(number for number in range(len(tokens) + len(taken)) if number not in taken)
    others = sorted((number, token) for token, number in tokens.items() if token not in reserved)
    placed = {**reserved, **{token: next(free) for _, token in others}}

    model = json.loads(core.to_str())["model"]
    if wordpiece:
        again = Tokenizer(models.WordPiece(vocab=placed, unk_token="[UNK]"))
    else:
        pairs: Any = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        again = Tokenizer(models.BPE(vocab=placed, merges=pairs))
    again.pre_tokenizer, again.decoder = core.pre_tokenizer, core.decoder
    if core.normalizer is not None:
        again.normalizer = core.normalizer
    return again


def _template(core: Any, config: Any, *, wordpiece: bool) -> Any:
    """Return the begin and end of a text: `[CLS]` and `[SEP]`, those in an encoder's configuration, else nothing."""
    from tokenizers import processors
    from transformers.models.auto import modeling_auto

    encoders = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    before, after = ("[CLS]", "[SEP]") if wordpiece else (None, None)
    if not wordpiece and (getattr(config, "is_encoder_decoder", False) or config.model_type in encoders):
        before = "<s>" if getattr(config, "bos_token_id", None) is not None else None
        after = "</s>" if getattr(config, "eos_token_id", None) is not None else None
    parts = [*([f"{before}:0"] if before else []), "$A:0", *([f"{after}:0"] if after else [])]
    ids = [(token, core.token_to_id(token)) for token in (before, after) if token]
    return processors.TemplateProcessing(single=" ".join(parts), special_tokens=ids)


#: The number of texts to time a tokenizer on; a slow one takes a second for some 50,000 tokens.
_TIMED_TEXTS: Final = 256
_FILES: Final = regex(r"(tokenizer|vocab|merges|spiece|sentencepiece).*|.*\.(model|tiktoken)")
#: The Python WordPiece tokenizer: its name in transformers 5, in transformers 4.
_PYTHON_WORDPIECE: Final = ("BertTokenizerLegacy", "BertTokenizer")

Ids: TypeAlias = "list[list[int]]"


class OfModel(Struct, frozen=True, kw_only=True):
    """The model that the tokenizer is for."""

    #: On the meta device.
    module: Any
    location: str
    #: Whether the Hub may be asked.
    hub: bool
    trust_remote_code: bool

    @property
    def config(self) -> Any:
        """Return the model's configuration."""
        return self.module.config

    @property
    def vocabulary(self) -> int:
        """Return the model's vocabulary size."""
        return int(getattr(self.config, "text_config", self.config).vocab_size)


class Tokenized(Struct, frozen=True, kw_only=True):
    """The texts as token ids, none empty, and the special token ids for building batches."""

    ids: tuple[tuple[int, ...], ...]
    pad: int
    mask: int | None
    special: frozenset[int]
    tokenizers: tuple[ObservedTokenizer, ...]


class _Chosen(Struct, frozen=True, kw_only=True):
    tokenizer: Any
    trained_because: str | None = None


def tokenized(model: OfModel, texts: Sequence[str], wanted: str | None) -> Tokenized:
    """Return the texts by the `wanted` tokenizer (`fast`, `slow`, `None` for the model's own).

    Raises `UsageError` if there is no such tokenizer.
    """
    with quiet_libraries():
        chosen = _own(model, texts) or _trained(model, texts, "the model comes without a tokenizer")
        if chosen.trained_because is None and len(chosen.tokenizer) > model.vocabulary:
            largest = max((number for of_text in _ids(chosen.tokenizer, texts) for number in of_text), default=0)
            if largest >= model.vocabulary:
                why = f"the model's tokenizer uses ids up to {largest}, but the model has only {model.vocabulary} ids"
                chosen = _trained(model, texts, why)
        other = _slow(chosen.tokenizer, model) if chosen.tokenizer.is_fast else None
        used, unused = _choice(chosen.tokenizer, other, wanted, model)
        ids = tuple(tuple(of_text) for of_text in _ids(used, texts) if of_text)
        both = (used,) if unused is None else (used, unused)
        # The configuration's id of padding, which the model checks, else the tokenizer's, else that of the end.
        padding = (getattr(model.config, "pad_token_id", None), used.pad_token_id, used.eos_token_id, 0)
        return Tokenized(
            ids=ids,
            pad=next(number for number in padding if isinstance(number, int) and number >= 0),
            mask=used.mask_token_id,
            special=frozenset(used.all_special_ids),
            tokenizers=_timed(both, texts, chosen.trained_because),
        )


def _choice(tokenizer: Any, slow: Any, wanted: str | None, model: OfModel) -> tuple[Any, Any]:
    """Return the tokenizer to use, and the other one."""
    from transformers import __version__

    if wanted == "slow" and tokenizer.is_fast:
        if slow is None:
            raise UsageError(
                f"{TOKENIZER.flags[-1]} slow: transformers {__version__} has no Python tokenizer known to match that"
                f" of {model.config.model_type} - leave it out"
            )
        return slow, tokenizer
    if wanted == "fast" and not tokenizer.is_fast:
        raise UsageError(
            f"{TOKENIZER.flags[-1]} fast: {model.config.model_type} has only a Python tokenizer,"
            f" {type(tokenizer).__name__} - leave it out"
        )
    return tokenizer, slow


def _ids(tokenizer: Any, texts: Sequence[str]) -> Ids:
    ids: Ids = tokenizer(list(texts), padding=False, truncation=False, return_attention_mask=False)["input_ids"]
    return ids


# ----------------------------------------------------------------------------------------------------------- candidates


def _own(model: OfModel, texts: Sequence[str]) -> _Chosen | None:
    """Return the model's own tokenizer from its folder or the cache; `None` if it has none there.

    Without tokenizer files transformers would create a tokenizer that knows only special tokens.
    """
    from transformers import AutoTokenizer

    offline = not (model.hub and hub_answers())
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model.location, config=model.config, local_files_only=offline, trust_remote_code=model.trust_remote_code
        )
        ids = _ids(tokenizer, texts[:8])
    except Exception as error:  # each kind of file has errors of its own
        folder = Path(model.location)
        if folder.is_dir() and any(_FILES.fullmatch(file.name) for file in folder.iterdir()):
            return _trained(model, texts, f"the model's tokenizer cannot be loaded ({one_line(error, 120)})")
        return None
    known = {number for of_text in ids for number in of_text} - set(tokenizer.all_special_ids)
    return _Chosen(tokenizer=tokenizer) if len(known) > 1 else None


def _trained(model: OfModel, texts: Sequence[str], because: str) -> _Chosen:
    return _Chosen(tokenizer=trained_tokenizer(model.config, texts, model.vocabulary), trained_because=because)


def _slow(tokenizer: Any, model: OfModel) -> Any:
    """Return the Python tokenizer equivalent to a fast one; `None` if transformers has none.

    transformers 5 silently ignores `use_fast=False`: the class decides.
    """
    import transformers
    from transformers import AutoTokenizer

    if type(tokenizer.backend_tokenizer.model).__name__ == "WordPiece":
        for name in _PYTHON_WORDPIECE:
            kind = getattr(transformers, name, None)
            if kind is not None and hasattr(kind, "_tokenize") and not hasattr(kind, "backend_tokenizer"):
                return _python_wordpiece(kind, tokenizer)
    try:
        slow = AutoTokenizer.from_pretrained(model.location, use_fast=False, local_files_only=True)
    except Exception:  # none exists, or a package that it needs is missing
        return None
    return None if slow.is_fast or len(slow) != len(tokenizer) else slow


def _python_wordpiece(kind: Any, tokenizer: Any) -> Any:
    """Return the Python tokenizer with the vocabulary and the rules of a fast one."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    rules = {key: getattr(normalizer, key) for key in ("strip_accents",) if hasattr(normalizer, key)}
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    lines = (tokens.get(number, f"[unused of opanatomy {number}]") for number in range(max(tokens) + 1))
    special = {
        f"{part}_token": getattr(tokenizer, f"{part}_token")
        for part in ("unk", "sep", "pad", "cls", "mask")
        if getattr(tokenizer, f"{part}_token") is not None
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "vocab.txt")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return kind(
            str(path),
            do_lower_case=getattr(normalizer, "lowercase", True),
            tokenize_chinese_chars=getattr(normalizer, "handle_chinese_chars", True),
            **rules,
            **special,
        )


# ---------------------------------------------------------------------------------------------------------------- speed


def _timed(
    tokenizers: Sequence[Any], texts: Sequence[str], trained_because: str | None
) -> tuple[ObservedTokenizer, ...]:
    """Time both on the same texts, the used one first, and compare their ids."""
    few = list(texts[:_TIMED_TEXTS])
    observed: list[ObservedTokenizer] = []
    reference: Ids = []
    for index, tokenizer in enumerate(tokenizers):
        _ids(tokenizer, few[:8])
        begin = time.perf_counter_ns()
        ids = _ids(tokenizer, few)
        duration = time.perf_counter_ns() - begin
        reference = reference or ids
        observed.append(
            ObservedTokenizer(
                name=type(tokenizer).__name__,
                slow=not tokenizer.is_fast,
                used=not index,
                tokens=sum(map(len, ids)),
                duration_ns=duration,
                same_ids=ids == reference,
                trained_because=trained_because,
            )
        )
    return tuple(observed)
