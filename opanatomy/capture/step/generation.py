"""Run a generation as a step: prefill to the first new token, then decoding, each in its phase range."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.parts import BEFORE_FORWARD, check_generates
from opanatomy.capture.step.ranges import open_phase
from opanatomy.errors import CaptureError, UsageError
from opanatomy.options import RunOptions, as_asked
from opanatomy.records.taxonomy import Phase

if TYPE_CHECKING:
    import torch


@dataclass(slots=True, kw_only=True)
class Generator:
    """Generations of `new_tokens` for each sample: no sampling, and no end before the last token.

    A phase lasts from the preparation of one forward to the next: forward, token selection, and cache reordering for
    beams. Prefill extends to the end of the first, decoding is the rest.
    """

    module: Any
    arguments: dict[str, Any]
    new_tokens: int
    beams: int
    #: Called with the phase that begins.
    enter: Callable[[Phase], None] = lambda phase: None
    #: Called with the completed share of the tokens, in a step that nothing times.
    advance: Callable[[float], None] | None = None
    #: The number of forwards in the last generation, and the time to its first token.
    forwards: int = field(default=0, init=False)
    first_token_ns: int = field(default=0, init=False)

    def run(self) -> None:
        """Run one generation; `CaptureError` if the model's own `generate` made another number of tokens."""
        padding = getattr(self.module.generation_config, "pad_token_id", None)
        # They go over the model's own settings: the same tokens in every step, and that many.
        settings = {
            "max_new_tokens": self.new_tokens,
            "num_beams": self.beams,
            "num_return_sequences": 1,
            "do_sample": False,
            "eos_token_id": None,
            "forced_eos_token_id": None,
            "pad_token_id": 0 if padding is None else padding,
            "return_dict_in_generate": False,
        }
        self.forwards = 0
        begin = time.perf_counter_ns()
        with open_phase(self.enter, Phase.PREFILL) as switch:

            def before_forward() -> None:
                if self.forwards == 1:
                    # The token is on the host by now, to decide whether to go on.
                    self.first_token_ns = time.perf_counter_ns() - begin
                    switch(Phase.DECODING)
                if self.advance is not None:
                    self.advance(self.forwards / self.new_tokens)
                self.forwards += 1

            with method_hook(self.module, BEFORE_FORWARD, before=before_forward):
                self.module.generate(**self.arguments, **settings)
        if self.new_tokens == 1:
            self.first_token_ns = time.perf_counter_ns() - begin
        if self.forwards != self.new_tokens:
            raise CaptureError(
                f"{type(self.module).__name__}.generate ran {self.forwards} forward passes for {self.new_tokens}"
                " new tokens instead of one per token - profile it with"
                f" {as_asked('--inference, without --generate', 'inference=True, without generate')}"
            )

    @contextmanager
    def telling(self, advance: Callable[[float], None]) -> Iterator[None]:
        """Report to `advance` the completed share of the tokens inside the block."""
        self.advance = advance
        try:
            yield
        finally:
            self.advance = None


@contextmanager
def method_hook(
    module: Any,
    method: str,
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[Any], None] = lambda result: None,
) -> Iterator[None]:
    """Call `before` before each call of a method of this object inside the block, and `after` with its result."""
    plain = getattr(module, method)

    @functools.wraps(plain)
    def telling(*args: Any, **kwargs: Any) -> Any:
        before()
        result = plain(*args, **kwargs)
        after(result)
        return result

    was_own = vars(module).get(method)
    setattr(module, method, telling)
    try:
        yield
    finally:
        delattr(module, method)
        if was_own is not None:
            setattr(module, method, was_own)


def generator_of(module: torch.nn.Module, inputs: Any, options: RunOptions, *, option: str) -> Generator | None:
    """Return the generator of a run, `None` for other steps; `UsageError` if the model does not generate.

    `option` is the name of the option in messages.
    """
    if options.generate is None:
        return None
    check_generates(module, option)
    arguments = inputs
    if isinstance(inputs, tuple):
        if len(inputs) != 1:
            raise UsageError(
                f"{option}: the inputs have no names ({len(inputs)} given) - pass a dictionary of arguments for the"
                " model's generate"
            )
        arguments = {"inputs": inputs[0]}
    return Generator(module=module, arguments=arguments, new_tokens=options.generate, beams=options.beams or 1)
