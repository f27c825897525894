"""What comes back: an answer is its text, with everything else as attributes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict


@dataclass(frozen=True)
class Logprob:
    """Natural logarithm of a token's probability; -inf for what cannot be.

    ``rank`` is 1 for the likeliest token; None where only the token itself was asked about.
    ``decoded_token`` is the token alone as text, with U+FFFD for bytes that are no whole character;
    None if the model's folder has no tokenizer.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# Of one place in a text: the token that stands there first, then the likeliest ones.
Logprobs = Dict[int, Logprob]


@dataclass
class CompletionOutput:
    """One answer of a request, or, in a stream, what it has gained."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None
    finish_reason: str | None = None  # "stop", "length", "abort", "deadline", "error"
    stop_reason: int | str | None = None  # the stop text or stop token; None for the model's own
    # of its draws: given as seq_seed it gives the same answer (one that was drawn without a seed:
    # only if there were no drafts)
    seed: int | None = None
    error: str | None = None  # with finish_reason "error"

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the tokens' log-probabilities, if they were asked for."""
        if self.logprobs is None:
            return None
        return sum(place[token].logprob for place, token in zip(self.logprobs, self.token_ids))

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0  # of all answers
    cached_tokens: int = 0  # of the prompt, that needed no computing

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass
class RequestMetrics:
    """Seconds, of the answer that ended last."""

    queue_seconds: float = 0.0  # from submission to the first step with a row of it
    prompt_seconds: float = 0.0  # from then to the first token
    decode_seconds: float = 0.0  # from the first token to the last


@dataclass
class TokenOutput:
    """One token, as DeepInfer's engine gives them (LLM(decode_sequence=False)).

    Unlike there, log-probabilities are the model's own and none stand for "not asked for".
    """

    request_id: str
    prompt_len: int
    token_id: int
    num_output_tokens: int  # this one included
    finish_reason: str  # "" before the last token
    finished: bool
    token_logprobs: float | None = None
    top_logprobs: list[float] = field(default_factory=list)
    top_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[float] | None = None  # with the first token: of tokens 1, 2, ...


class RequestOutput(str):
    """The answer to one prompt. It *is* the text of its first answer, a ``str``, as DeepInfer's
    ``LLM.generate`` returns; the attributes are those of vLLM's class of this name.

    Attributes:
        request_id: "0", "1", ... in the order in which requests were made of an LLM.
        prompt: the prompt as it was given, where that was a text.
        prompt_token_ids: its tokens, where it was given as such.
        outputs: the n answers.
        prompt_logprobs: one dict a token of the prompt, None for the first; None if not asked for.
        finished: True.
        usage, metrics: tokens and seconds.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    outputs: list[CompletionOutput]
    prompt_logprobs: list[Logprobs | None] | None
    finished: bool
    usage: Usage
    metrics: RequestMetrics

    def __new__(
        cls,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int] | None,
        outputs: list[CompletionOutput],
        prompt_logprobs: list[Logprobs | None] | None = None,
        usage: Usage | None = None,
        metrics: RequestMetrics | None = None,
    ) -> RequestOutput:
        self = super().__new__(cls, outputs[0].text if outputs else "")
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.outputs = outputs
        self.prompt_logprobs = prompt_logprobs
        self.finished = all(output.finished() for output in outputs)
        self.usage = usage or Usage()
        self.metrics = metrics or RequestMetrics()
        return self

    def __getnewargs__(self):  # so that pickle and copy keep the attributes
        return (self.request_id, self.prompt, self.prompt_token_ids, self.outputs,
                self.prompt_logprobs, self.usage, self.metrics)

    @property
    def num_cached_tokens(self) -> int:
        return self.usage.cached_tokens

    def tokens(self) -> list[TokenOutput]:
        """The first answer token by token, in DeepInfer's form."""
        answer, tokens = self.outputs[0], []
        for i, token in enumerate(answer.token_ids):
            last = i == len(answer.token_ids) - 1
            place = answer.logprobs[i] if answer.logprobs else None
            top = [(t, l.logprob) for t, l in (place or {}).items() if l.rank is not None]
            top.sort(key=lambda pair: place[pair[0]].rank)
            tokens.append(TokenOutput(
                request_id=self.request_id,
                prompt_len=self.usage.prompt_tokens,
                token_id=token,
                num_output_tokens=i + 1,
                finish_reason=(answer.finish_reason or "") if last else "",
                finished=last,
                token_logprobs=place[token].logprob if place else None,
                top_logprobs=[logprob for _, logprob in top],
                top_token_ids=[t for t, _ in top],
                prompt_logprobs=self._prompt_values() if i == 0 else None,
            ))
        return tokens

    def _prompt_values(self) -> list[float] | None:
        if self.prompt_logprobs is None:
            return None
        return [next(iter(place.values())).logprob for place in self.prompt_logprobs[1:] if place]
