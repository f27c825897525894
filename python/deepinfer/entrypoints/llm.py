"""LLM: a model in this process, and many requests to it at once."""

from __future__ import annotations

import ctypes
import difflib
import inspect
import itertools
import json
import os
import random
import threading
import weakref
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

from deepinfer import _library
from deepinfer._progress import progress
from deepinfer.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    TokenOutput,
    Usage,
)
from deepinfer.sampling_params import SamplingParams

Prompt = Union[str, Sequence[int], Mapping[str, Any]]
Message = Mapping[str, Any]

_WAIT_MS = 100  # between looks for Ctrl-C
_EFFORTS = {"none": 0, "low": 50, "high": 75, "max": 100}
_SPEC_MODES = {"priced": 0, "fixed": 1, "off": 2}
_REPLAY_MODES = {"off": 0, "mask": 1, "compact": 2}
_UNITS = {"K": 10, "M": 20, "G": 30, "T": 40}

# Arguments of the release's LLM that have nothing to act on here: taken with these values only.
_WITHOUT_EFFECT = {
    "tokenizer": None,
    "trust_remote_code": False,
    "revision": None,
    "tokenizer_revision": None,
    "expert_parallel_size": 1,
    "data_parallel_size": 0,
    "context_parallel_size": 1,
    "gpu_memory_utilization": 0.9,
}


def _bytes(name: str, value: int | str) -> int:
    """4096, or "4G", "1.5G", "512M"."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        text = value.strip().upper()
        shift = _UNITS.get(text[-1:], 0)
        return int(float(text[:-1] if shift else text) * 2**shift)
    except (AttributeError, ValueError, OverflowError):
        raise ValueError(f"{name} is {value!r}, allowed: bytes, such as 4096, '512M' or '4G'")


def _per_cent(name: str, value: str) -> float:
    try:
        share = float(value.strip()[:-1]) / 100
    except ValueError:
        share = 0
    if not 0.01 <= share <= 1:
        raise ValueError(f"{name} is {value!r}, allowed: bytes, or '1%' to '100%'")
    return share


class LLM:
    """A model, opened from a folder with config.json, tokenizer.json and safetensors files.

    All methods may be called from several threads at once. Answers do not depend on what else runs:
    the same prompt, parameters and seed give the same tokens.

    Args:
        model: the folder.
        max_model_len: tokens of prompt and answer together; None is what the model allows.
        max_num_seqs: answers computed at once, 1 to 4096.
        max_num_batched_tokens: tokens of a step, 1 to 65536.
        max_mixed_prefill_tokens: prompt tokens in a step in which answers go on; 0 is the default.
        threads: that compute; 0 is one for each core.
        backend: "cpu", "ref" (slow, for checking), or others that the library was built with.
        kv_memory: memory for the state of sequences, in bytes or as "4G"; 0 is a share of what is
            free.
        gpu_memory: a card's memory for everything, in bytes, as "100G" or as "80%" of what is free;
            0 is most of it.
        host_memory: memory for the state of answers that had to give way.
        enable_prefix_caching: use what was computed for the beginning of an earlier prompt again.
        async_scheduling: plan a step while the one before runs.
        batch_invariant: False: a card may form sums in the order that is fastest, so that the last
            bits of a prompt's state depend on what runs beside it.
        replay_mode: bounded replay of long prompts: "off", "mask" or "compact".
        replay_keep_tokens: tokens at the end of a prompt that the whole model reads then.
        num_drafts: tokens proposed by the draft model and verified at once; 0 is off, None what the
            model has, at most 5.
        spec_mode: how many of them are verified: "priced" (as many as pay), "fixed" (all) or "off".
        cost_cache: folder in which measured costs of steps are kept, with spec_mode "priced".
        max_logprobs: most log-probabilities beside a token that a request may ask for.
        max_queue: requests under way at once, beyond which BusyError is raised; 0 is no limit.
        trace_file: a Chrome trace of the steps, written while the engine runs.
        seed: seeds the requests that bring none, in the order in which they are made; None draws
            their seeds at random.
        decode_sequence: False: ``generate`` returns a list of TokenOutput for each prompt.

    Arguments of the released engine that mean nothing here (tokenizer, revision, ...) are taken with
    their default values; all others are a ``TypeError``.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 512,
        max_mixed_prefill_tokens: int = 0,
        threads: int = 0,
        backend: str = "cpu",
        kv_memory: int | str = 0,
        gpu_memory: int | str = 0,
        host_memory: int | str = 0,
        enable_prefix_caching: bool = True,
        async_scheduling: bool = True,
        batch_invariant: bool = True,
        replay_mode: str = "off",
        replay_keep_tokens: int = 140,
        num_drafts: int | None = None,
        spec_mode: str = "priced",
        cost_cache: str | os.PathLike[str] | None = None,
        max_logprobs: int = 20,
        max_queue: int = 0,
        trace_file: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        decode_sequence: bool = True,
        **others: Any,
    ) -> None:
        self._check_others(others)
        if replay_mode not in _REPLAY_MODES:
            raise ValueError(f"replay_mode is {replay_mode!r}, allowed: {', '.join(_REPLAY_MODES)}")
        if spec_mode not in _SPEC_MODES:
            raise ValueError(f"spec_mode is {spec_mode!r}, allowed: {', '.join(_SPEC_MODES)}")
        lib = _library.library()
        options = _library.EngineOptions()
        lib.di_engine_options_init(options, ctypes.sizeof(options))
        options.model = os.fsencode(model)
        options.backend = backend.encode()
        options.kv_memory = _bytes("kv_memory", kv_memory)
        if isinstance(gpu_memory, str) and gpu_memory.strip().endswith("%"):
            options.gpu_memory_share = _per_cent("gpu_memory", gpu_memory)
        else:
            options.gpu_memory = _bytes("gpu_memory", gpu_memory)
        options.host_memory = _bytes("host_memory", host_memory)
        options.trace_file = None if trace_file is None else os.fsencode(trace_file)
        options.cost_cache = None if cost_cache is None else os.fsencode(cost_cache)
        options.spec_mode = _SPEC_MODES[spec_mode]
        options.no_prefix_cache = not enable_prefix_caching
        options.synchronous = not async_scheduling
        options.no_batch_invariance = not batch_invariant
        options.replay_mode = _REPLAY_MODES[replay_mode]
        options.replay_keep_tokens = replay_keep_tokens if replay_mode != "off" else 0
        options.max_model_len = 0 if max_model_len is None else max_model_len
        for name, value in {"max_num_seqs": max_num_seqs, "threads": threads,
                            "max_num_batched_tokens": max_num_batched_tokens,
                            "max_mixed_prefill_tokens": max_mixed_prefill_tokens,
                            "num_drafts": -1 if num_drafts is None else num_drafts,
                            "max_logprobs": max_logprobs,
                            "max_queue": max_queue}.items():
            if not -(2**31) <= value < 2**31:
                raise ValueError(f"{name} is {value}, which is out of every range")
            setattr(options, name, value)
        error = _library.Error()
        engine = lib.di_engine_open(options, error)
        if not engine:
            raise error.exception()
        self._lib, self._engine = lib, engine
        self._queues: set[_Queue] = set()
        # Also when the program ends: the step thread must not outlive the interpreter.
        self._close = weakref.finalize(self, _close_engine, lib, engine, self._queues)
        self._eos = self.info()["eos_token_id"]
        self._in_flight = 2 * max_num_seqs
        self._seeds = None if seed is None else random.Random(seed)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._decode_sequence = decode_sequence

    @staticmethod
    def _check_others(others: Mapping[str, Any]) -> None:
        known = [p for p in inspect.signature(LLM.__init__).parameters if p not in ("self", "others")]
        for name, value in others.items():
            if name not in _WITHOUT_EFFECT:
                near = difflib.get_close_matches(name, [*known, *_WITHOUT_EFFECT], n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"LLM has no argument {name!r}{hint}")
            if value != _WITHOUT_EFFECT[name]:
                raise NotImplementedError(
                    f"{name} is {value!r}; this version has nothing that it could change"
                )

    # ---- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Gives everything back. No other call may be running; closing twice is allowed."""
        self._engine = None
        self._close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def _handle(self) -> int:
        if not self._engine:
            raise ValueError("this LLM has been closed")
        return self._engine

    # ---- looking in -----------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """vocab_size, max_model_len, bos_token_id, eos_token_id, has_tokenizer, batch_invariant."""
        return self._read(_library.EngineInfo, self._lib.di_engine_get_info)

    def stats(self) -> dict[str, Any]:
        """What the engine has done since it was opened, and what it does now: requests, tokens,
        steps, preemptions, cache, seconds of device and host."""
        return self._read(_library.EngineStats, self._lib.di_engine_get_stats)

    def _spell(self, token: int) -> str | None:
        """A token alone as text."""
        size = ctypes.c_size_t()
        data = self._lib.di_engine_token_bytes(self._handle(), token, size)
        return None if data is None else ctypes.string_at(data, size.value).decode("utf-8", "replace")

    def _read(self, kind: Any, function: Any) -> dict[str, Any]:
        struct = kind(struct_bytes=ctypes.sizeof(kind))
        function(self._handle(), struct)
        values = {name: getattr(struct, name) for name, _ in kind._fields_ if name != "struct_bytes"}
        return {name: list(value) if isinstance(value, ctypes.Array) else value
                for name, value in values.items()}

    # ---- answers --------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: bool = True,
        multi_modal_data: None = None,
    ) -> list[RequestOutput] | list[list[TokenOutput]]:
        """Answers prompts, in their order, as many at once as ``max_num_seqs`` allows.

        A prompt is a text (special tokens in it are recognised; not for what strangers type: see
        ``chat``), a list of token ids, or a dict with "prompt", "prompt_token_ids" or "messages".
        ``sampling_params`` is one for all, or one for each.

        Returns a RequestOutput for each prompt: a ``str`` with attributes. A prompt or parameter
        that is refused raises InvalidRequestError (a ``ValueError``) and cancels the others; a
        request that fails later has finish_reason "error" and harms no other.
        """
        if multi_modal_data is not None:
            raise NotImplementedError("multi_modal_data: images are not there yet")
        if (prompts is None) == (prompt_token_ids is None):
            raise TypeError("exactly one of prompts and prompt_token_ids is needed")
        listed = _list_prompts(prompts if prompts is not None else prompt_token_ids)
        outputs = self._run(listed, sampling_params, use_tqdm)
        return outputs if self._decode_sequence else [output.tokens() for output in outputs]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        thinking: bool | None = None,
        reasoning_effort: str | int | None = None,
    ) -> list[RequestOutput]:
        """Answers a conversation, or several: lists of {"role", "content"}, laid out as the model
        was taught. What a content spells out is plain text, never a control token.

        ``thinking`` lets the model reason first (the answer then begins with the reasoning, up to
        ``</think>``); ``reasoning_effort`` says how much: "low", "high", "max" or 1 to 100, "none"
        for not at all.
        """
        if isinstance(messages, Mapping) or isinstance(messages, (str, bytes)):
            raise TypeError("messages is a list of {'role', 'content'}, or a list of such lists")
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        effort = _effort(thinking, reasoning_effort)
        prompts = [{"messages": list(c), "effort": effort} for c in conversations]
        return self._run(prompts, sampling_params, use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        thinking: bool | None = None,
        reasoning_effort: str | int | None = None,
    ) -> Iterator[CompletionOutput]:
        """Yields what an answer gains, as soon as it is there: CompletionOutput with the new text
        and tokens, the last with a finish_reason. With n > 1 the answers come mixed; see ``index``.

        ``prompt`` as for ``generate``, or a list of messages. Closing the generator (leaving the
        loop) cancels the request.
        """
        if not isinstance(prompt, (str, Mapping)) and prompt and isinstance(prompt[0], Mapping):
            prompt = {"messages": list(prompt)}
        if isinstance(prompt, Mapping) and "messages" in prompt:
            prompt = {"effort": _effort(thinking, reasoning_effort), **prompt}
        elif thinking is not None or reasoning_effort is not None:
            raise ValueError("thinking and reasoning_effort belong to messages only")
        return self._stream(_Request("0", prompt, sampling_params or SamplingParams(), self._spell))

    def _stream(self, request: _Request) -> Iterator[CompletionOutput]:
        with _Queue(self._lib, self._handle(), self._queues) as queue:
            self._submit(queue, request)
            running = request.params.n
            while running:
                output = queue.wait()
                if output is None:
                    continue
                gained = _gained(output.contents, request)
                self._lib.di_output_free(output)
                running -= gained.finished()
                if gained.error is not None:
                    raise _library.DeepInferError(gained.error)
                yield gained

    # ---- the machinery --------------------------------------------------------------------------

    def _submit(self, queue: _Queue, request: _Request) -> int:
        """Accepts a request; the number that its outputs carry."""
        with self._lock:
            seed = None if self._seeds is None else self._seeds.getrandbits(64)
        if request.params.eos_id not in (0, self._eos):
            raise ValueError(f"eos_id is {request.params.eos_id}, the model's is {self._eos}; other "
                             "tokens that end an answer are named by stop_token_ids")
        params, keep = request.params._to_c(seed)
        prompt, more = request.to_c(self._lib)
        error = _library.Error()
        number = self._lib.di_submit(self._handle(), queue.handle, prompt, params, None, error)
        del keep, more  # read by now
        if not number:
            raise error.exception()
        return number

    def _run(self, prompts: Sequence[Any], sampling_params: Any,
             use_tqdm: bool) -> list[RequestOutput]:
        params = _list_params(sampling_params, len(prompts))
        with self._lock:
            requests = [_Request(str(next(self._numbers)), prompt, p, self._spell)
                        for prompt, p in zip(prompts, params)]
        waiting = iter(enumerate(requests))
        running: dict[int, _Request] = {}
        bar = progress(use_tqdm, len(requests), "answered")
        try:
            with _Queue(self._lib, self._handle(), self._queues) as queue:
                while True:
                    for i, request in itertools.islice(waiting, self._in_flight - len(running)):
                        try:
                            running[self._submit(queue, request)] = request
                        except (_library.DeepInferError, ValueError, TypeError) as error:
                            if len(requests) > 1:
                                error.args = (f"prompts[{i}]: {error}", *error.args[1:])
                            raise
                    if not running:
                        return [request.output() for request in requests]
                    output = queue.wait()
                    if output is None:
                        continue
                    request = running[output.contents.request]
                    request.take(output.contents)
                    bar.update(request.is_done(), output.contents.num_token_ids)
                    if request.is_done():
                        del running[output.contents.request]
                    self._lib.di_output_free(output)
        finally:
            bar.close()


class _Queue:
    """A queue of outputs, one of an LLM's. Leaving it, also by an exception, cancels what is under
    way."""

    def __init__(self, lib: ctypes.CDLL, engine: int, queues: set[_Queue]) -> None:
        self.lib, self.queues = lib, queues
        error = _library.Error()
        self.handle = lib.di_queue_create(engine, error)
        if not self.handle:
            raise error.exception()
        queues.add(self)

    def __enter__(self) -> _Queue:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.queues.discard(self)
        handle, self.handle = self.handle, None
        self.lib.di_queue_destroy(handle)

    def wait(self) -> Any:
        """A pointer to an output, or None when none came for a moment."""
        if self.handle is None:
            raise ValueError("this LLM has been closed")
        return self.lib.di_queue_wait(self.handle, _WAIT_MS) or None


def _close_engine(lib: ctypes.CDLL, engine: int, queues: set[_Queue]) -> None:
    """Queues go first: a stream that nobody reads to its end may still have one."""
    for queue in list(queues):
        queue.__exit__()
    lib.di_engine_close(engine)


class _Request:
    """A prompt with its parameters, and its answers as they grow."""

    def __init__(self, request_id: str, prompt: Any, params: SamplingParams,
                 spell: Callable[[int], str | None]) -> None:
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params is {params!r}, a SamplingParams is needed")
        self.id, self.prompt, self.params, self.spell = request_id, prompt, params, spell
        self.answers = [CompletionOutput(i) for i in range(params.n)]
        self.texts: list[list[str]] = [[] for _ in self.answers]
        self.prompt_logprobs: list[Any] | None = None
        self.usage, self.metrics = Usage(), RequestMetrics()
        self.running = params.n

    def to_c(self, lib: ctypes.CDLL) -> tuple[_library.Prompt, Any]:
        """The library's struct, and what it points to."""
        c = _library.Prompt()
        lib.di_prompt_init(c, ctypes.sizeof(c))
        kind, value = _kind_of(self.prompt)
        if kind == "prompt_token_ids":
            ids = (ctypes.c_int32 * len(value))(*value)
            c.token_ids = ctypes.cast(ids, ctypes.POINTER(ctypes.c_int32))
            c.num_token_ids = len(value)
            return c, ids
        if kind == "messages":
            c.messages = json.dumps(value).encode()
            c.effort = self.prompt.get("effort", 0)
            return c, c.messages
        text = value.encode("utf-8", "surrogatepass")
        buffer = ctypes.create_string_buffer(text)
        c.text = ctypes.cast(buffer, ctypes.c_char_p)
        c.text_bytes = len(text)
        return c, buffer

    def take(self, output: _library.Output) -> None:
        gained = _gained(output, self)
        answer = self.answers[gained.index]
        self.texts[gained.index].append(gained.text)
        answer.token_ids += gained.token_ids
        if gained.logprobs is not None:
            answer.logprobs = (answer.logprobs or []) + gained.logprobs
        if output.prompt_logprobs:
            self.prompt_logprobs = _places(output.prompt_logprobs, output.prompt_tokens,
                                           self.spell)
            self.prompt_logprobs[0] = None
        if gained.finished():
            self.running -= 1
            answer.text = "".join(self.texts[gained.index])
            for name in ("finish_reason", "stop_reason", "seed", "error"):
                setattr(answer, name, getattr(gained, name))
            self.usage.prompt_tokens = output.prompt_tokens
            self.usage.cached_tokens = max(self.usage.cached_tokens, output.cached_tokens)
            self.usage.completion_tokens += output.completion_tokens
            self.metrics = RequestMetrics(output.queue_seconds, output.prompt_seconds,
                                          output.decode_seconds)

    def is_done(self) -> bool:
        return self.running == 0

    def output(self) -> RequestOutput:
        kind, value = _kind_of(self.prompt)
        return RequestOutput(
            self.id,
            value if kind == "prompt" else None,
            list(value) if kind == "prompt_token_ids" else None,
            self.answers,
            self.prompt_logprobs,
            self.usage,
            self.metrics,
        )


# ---- from the caller --------------------------------------------------------------------------


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _kind_of(prompt: Any) -> tuple[str, Any]:
    """"prompt", "prompt_token_ids" or "messages", and the value."""
    if isinstance(prompt, str):
        return "prompt", prompt
    if isinstance(prompt, Mapping):
        kinds = [k for k in ("prompt", "prompt_token_ids", "messages") if prompt.get(k) is not None]
        others = set(prompt) - {"prompt", "prompt_token_ids", "messages", "effort"}
        if len(kinds) != 1 or others:
            raise ValueError(f"a prompt is a dict with {sorted(prompt)}, exactly one of 'prompt', "
                             "'prompt_token_ids' and 'messages' is needed, and nothing else")
        if kinds[0] == "prompt" and not isinstance(prompt["prompt"], str):
            raise TypeError(f"prompt is {prompt['prompt']!r}, a string is needed")
        return kinds[0], prompt[kinds[0]]
    if hasattr(prompt, "__iter__") and not isinstance(prompt, (bytes, bytearray)):
        for i, token in enumerate(prompt):
            if not _is_int(token):
                raise TypeError(f"a prompt of token ids holds {token!r} at {i}")
            if not -(2**31) <= token < 2**31:
                raise ValueError(f"prompt_token_ids[{i}] is {token}, which is no token id")
        return "prompt_token_ids", prompt
    raise TypeError(f"a prompt is {prompt!r}, a string, a list of token ids or a dict is needed")


def _list_prompts(prompts: Any) -> list[Any]:
    """One prompt or several, as a list of checked ones."""
    if isinstance(prompts, (str, Mapping)):
        prompts = [prompts]
    else:
        prompts = list(prompts)
        if prompts and all(_is_int(token) for token in prompts):
            prompts = [prompts]
    for i, prompt in enumerate(prompts):
        try:
            _kind_of(prompt)
        except (TypeError, ValueError) as error:
            raise type(error)(f"prompts[{i}]: {error}") from None
    return prompts


def _list_params(params: Any, count: int) -> list[SamplingParams]:
    """One for each of `count` prompts; copies, so that changing one later changes no answer."""
    if params is None or isinstance(params, SamplingParams):
        return [(params or SamplingParams()).clone() for _ in range(count)]
    listed = list(params)
    if len(listed) != count:
        raise ValueError(f"{len(listed)} sampling_params for {count} prompts; give one, or one each")
    for p in listed:
        if not isinstance(p, SamplingParams):
            raise TypeError(f"sampling_params holds {p!r}, a SamplingParams is needed")
    return [p.clone() for p in listed]


def _effort(thinking: bool | None, effort: str | int | None) -> int:
    if isinstance(effort, str):
        if effort not in _EFFORTS:
            raise ValueError(f"reasoning_effort is {effort!r}, allowed: {', '.join(_EFFORTS)}, or 1 "
                             "to 100")
        effort = _EFFORTS[effort]
    elif effort is not None and not (_is_int(effort) and 1 <= effort <= 100):
        raise ValueError(f"reasoning_effort is {effort!r}, allowed: {', '.join(_EFFORTS)}, or 1 to "
                         "100")
    if thinking is None:
        return effort or 0
    return (effort or _EFFORTS["high"]) if thinking else 0


# ---- from the library -------------------------------------------------------------------------


def _places(infos: Any, count: int, spell: Callable[[int], str | None]) -> list[Any]:
    """A dict for each token: itself first, then the likeliest ones."""
    out = []
    for info in infos[:count]:
        top = {l.token_id: Logprob(l.logprob, rank, spell(l.token_id))
               for rank, l in enumerate(info.top[: info.num_top], 1)}
        chosen = info.chosen.token_id
        place = {chosen: top.pop(chosen, None)
                 or Logprob(info.chosen.logprob, None, spell(chosen))}
        place.update(top)
        out.append(place)
    return out


def _gained(output: _library.Output, request: _Request) -> CompletionOutput:
    """A copy of what an output tells."""
    count = output.num_token_ids
    finish = _library.FINISH_REASONS[output.finish_reason]
    stop: Any = output.stop.decode() if output.stop else None
    if stop is None and output.stop_token_id in (request.params.stop_token_ids or ()):
        stop = output.stop_token_id
    return CompletionOutput(
        index=output.index,
        text=ctypes.string_at(output.text, output.text_bytes).decode("utf-8", "replace"),
        token_ids=output.token_ids[:count],
        logprobs=_places(output.logprobs, count, request.spell) if output.logprobs else None,
        finish_reason=finish,
        stop_reason=stop,
        seed=output.seed if finish else None,
        error=output.error.message.decode("utf-8", "replace") if finish == "error" else None,
    )
