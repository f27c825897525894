"""How the tokens of an answer are chosen, and when it ends."""

from __future__ import annotations

import ctypes
import difflib
import json
import math
from typing import Any, Callable, Mapping, Sequence

from deepinfer import _library

_INT32_MAX = 2**31 - 1

# ---- checks: each takes a field's name and a value, and returns the value to keep ----------------

Check = Callable[[str, Any], Any]


def _refuse(name: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{name} is {value!r}, allowed: {allowed}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _real(low: float, high: float, open_low: bool = False) -> Check:
    allowed = f"{'above ' if open_low else ''}{low:g} {'up ' if open_low else ''}to {high:g}"

    def check(name: str, value: Any) -> float:
        if not _is_number(value) and not hasattr(value, "__float__") or isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, a number is needed")
        value = float(value)
        if math.isnan(value) or not low <= value <= high or (open_low and value == low):
            raise _refuse(name, value, allowed)
        return value

    return check


def _int(low: int, high: int, also: tuple[int, ...] = ()) -> Check:
    allowed = "".join(f"{n}, or " for n in also) + f"{low} to {high}"

    def check(name: str, value: Any) -> int:
        if not _is_int(value):
            raise TypeError(f"{name} is {value!r}, an integer is needed")
        value = int(value)
        if not low <= value <= high and value not in also:
            raise _refuse(name, value, allowed)
        return value

    return check


def _bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, True or False is needed")
    return value


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _seed(name: str, value: Any) -> int:
    if not _is_int(value):
        raise TypeError(f"{name} is {value!r}, an integer is needed")
    return int(value) % 2**64


def _ids(name: str, value: Any) -> list[int]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} is {value!r}, a list of token ids is needed")
    ids = list(value)
    for i, token in enumerate(ids):
        if not _is_int(token):
            raise TypeError(f"{name}[{i}] is {token!r}, a token id is needed")
        if not -(2**31) <= token <= _INT32_MAX:
            raise _refuse(f"{name}[{i}]", token, "token ids of the model")
    return [int(token) for token in ids]


def _texts(name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, bytes) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} is {value!r}, a string or a list of strings is needed")
    texts = list(value)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{i}] is {text!r}, a string is needed")
        if not text or "\0" in text:
            raise _refuse(f"{name}[{i}]", text, "at least one character, none of them NUL")
    return texts


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, a string is needed")
    if "\0" in value:
        raise _refuse(name, value, "no NUL characters")
    return value


def _bias(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r}, a dict of token ids and numbers is needed")
    one = _real(-100, 100)
    out = {}
    for token, bias in value.items():
        if isinstance(token, str) and token.isdecimal():  # OpenAI writes ids as strings
            token = int(token)
        if not _is_int(token) or not 0 <= token <= _INT32_MAX:
            raise _refuse(f"{name}: the key", token, "token ids of the model")
        out[int(token)] = one(f"{name}[{token}]", bias)
    return out


def _logprobs(name: str, value: Any) -> bool | int:
    """False, True, or how many of the likeliest tokens beside the chosen one."""
    if value is None:
        return False
    return value if isinstance(value, bool) else _int(0, 1000)(name, value)


def _mode(name: str, value: Any) -> str:
    if value not in ("raw", "processed"):
        raise _refuse(name, value, "'raw' or 'processed'")
    return value


# so_args' schema types, as in the library's di_schema_type.
_SCHEMA_TYPES = {"json": 1, "json_schema": 1, "json_object": 2, "regex": 3, "ebnf": 4, "tools": 5,
                 "tools_required": 6, "gbnf": 7, "tools_or_content": 8}


def _schema(name: str, value: Any, kind: str) -> str | None:
    """The schema as a text: JSON may come as what json.loads gives."""
    if value is None and kind in ("json", "json_schema", "json_object"):
        return None
    if kind not in ("regex", "ebnf", "gbnf") and not isinstance(value, str):
        if not isinstance(value, (Mapping, list, tuple, bool)):
            raise TypeError(f"{name} is {value!r}, JSON or a string that holds some is needed")
        return json.dumps(value, ensure_ascii=False)
    return _text(name, value)


def _structured(name: str, value: Any) -> dict[str, Any] | None:
    """Structured output: a dict that names a schema."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {value!r}, a dict is needed")
    checks: dict[str, Check] = {
        "schema_type": lambda n, v: v,
        "schema": lambda n, v: v,
        "trigger_token_ids": _or_none(_ids),
        "bound_token_id": _or_none(_int(0, _INT32_MAX)),
        "strict": _bool,
        "lenient": _bool,
        "any_order": _bool,
        "max_whitespace": _int(0, 1000),
    }
    for key in value:
        if key in ("serialized", "bound_token_ids"):
            raise NotImplementedError(f"{name}[{key!r}] is not supported")
        if key not in checks:
            near = difflib.get_close_matches(str(key), list(checks), n=1)
            raise TypeError(f"{name} has no {key!r}" +
                            (f"; did you mean {near[0]!r}?" if near else ""))
    out = {key: checks[key](f"{name}[{key!r}]", v) for key, v in value.items()}
    kind = out.get("schema_type")
    if kind not in _SCHEMA_TYPES:
        raise _refuse(f"{name}['schema_type']", kind, ", ".join(map(repr, _SCHEMA_TYPES)))
    out["schema"] = _schema(f"{name}['schema']", out.get("schema"), kind)
    if out.get("bound_token_id") is not None and not out.get("trigger_token_ids"):
        raise ValueError(f"{name}['bound_token_id'] needs trigger_token_ids")
    return out


# In the order of the release's positional arguments, up to seq_seed; the rest by keyword only.
_CHECKS: dict[str, Check] = {
    "temperature": _real(0, 100),
    "top_p": _real(0, 1, open_low=True),
    "top_k": _int(1, _INT32_MAX, also=(-1, 0)),
    "ignore_eos": _bool,
    "max_tokens": _or_none(_int(1, _INT32_MAX)),
    "logprobs": _logprobs,
    "prompt_logprobs": _logprobs,
    "top_logprobs": _int(0, 1000),
    "first_n_token_no_eos": _int(0, _INT32_MAX),
    "eos_id": _int(0, _INT32_MAX),
    "so_args": _structured,
    "golden_token_ids": _or_none(_ids),
    "seq_seed": _or_none(_seed),
    "n": _int(1, 128),
    "min_p": _real(0, 1),
    "min_tokens": _int(0, _INT32_MAX),
    "stop": _or_none(_texts),
    "stop_token_ids": _or_none(_ids),
    "include_stop_str_in_output": _bool,
    "bad_words": _or_none(_texts),
    "repetition_penalty": _real(1e-6, 100),
    "presence_penalty": _real(-2, 2),
    "frequency_penalty": _real(-2, 2),
    "logit_bias": _or_none(_bias),
    "allowed_token_ids": _or_none(_ids),
    "logprobs_mode": _mode,
    "echo": _bool,
    "skip_special_tokens": _bool,
    "priority": _int(-(2**31), _INT32_MAX),
    "timeout": _or_none(_real(0, 1e9, open_low=True)),
    "cache_salt": _or_none(_text),
    "use_prefix_cache": _bool,
}

# Other engines' names where the meaning is the same.
_ALIASES = {
    "seed": "seq_seed",
    "sampling_seed": "seq_seed",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "include_stop": "include_stop_str_in_output",
    "no_stop_trim": "include_stop_str_in_output",
    "deadline": "timeout",
}

_STRUCTURED = (
    "structured_outputs", "guided_decoding", "guided_json", "guided_regex", "response_format",
    "json_schema", "regex", "ebnf",
)


class SamplingParams:
    """Parameters of one request.

    Names and defaults are DeepInfer's; vLLM's, SGLang's and OpenAI's names of the same things
    (``seed``, ``max_new_tokens``, ``max_completion_tokens``, ...) are understood, as arguments and
    as attributes. Values are checked when they are set, in the constructor and afterwards: a value
    out of range is a ``ValueError`` that names the field, the value and what is allowed, an unknown
    name a ``TypeError`` with the nearest right one.

    Args:
        temperature: 0 to 100; below 1e-5 the likeliest token is taken, the lowest id among equals.
        top_p: draw from the likeliest tokens that together reach this probability.
        top_k: draw from so many of the likeliest tokens; -1 or 0 is off.
        ignore_eos: go on after the end-of-sentence token.
        max_tokens: most tokens of the answer; None is what the context has left.
        logprobs: tell the log-probability of each token; a number also asks for so many of the
            likeliest ones beside it (``top_logprobs``).
        prompt_logprobs: the same for the prompt's tokens.
        top_logprobs: how many of the likeliest tokens, for both; turns ``logprobs`` on.
        first_n_token_no_eos: so many tokens at the beginning cannot end the answer; the same as
            ``min_tokens``, of which the larger one counts.
        eos_id: for compatibility: the end-of-sentence token is the model's, and 0 or its id are
            all that is taken. For others see ``stop_token_ids``.
        so_args: structured output, a dict: ``schema_type`` is "json", "json_object", "regex",
            "ebnf", "gbnf", "tools", "tools_required" or "tools_or_content", ``schema`` its text
            (JSON also as a dict or list).
            ``trigger_token_ids``: free text until these ids have come, then the schema;
            ``bound_token_id``: behind it the trigger must follow. For JSON also ``strict`` (on
            for "json", as in the release), ``lenient``, ``any_order`` and ``max_whitespace``.
        golden_token_ids: the answer, to be scored instead of drawn; -1 leaves a token free.
        seq_seed: seed of the draws, modulo 2**64; None is a random one, told with the answer.
        n: how many answers, 1 to 128, each with a seed made from the request's.
        min_p: leave out tokens less likely than this share of the likeliest one.
        min_tokens: no end before so many tokens.
        stop: a text or several that end the answer and are not part of it.
        stop_token_ids: tokens that end it.
        include_stop_str_in_output: the text that ended it is part of the answer after all.
        bad_words: texts that must not appear.
        repetition_penalty: divides the score of tokens of prompt and answer; 1 is off.
        presence_penalty: lowers the score of tokens that the answer holds.
        frequency_penalty: the same for each time it holds them.
        logit_bias: token ids and what is added to their scores, -100 to 100.
        allowed_token_ids: nothing else can be drawn.
        logprobs_mode: 'raw': of the model's own distribution; 'processed': of the one drawn from.
        echo: the answer's text begins with the prompt's.
        skip_special_tokens: control tokens leave no text.
        priority: lower goes first.
        timeout: seconds from submission until the answer is ended (finish_reason "deadline").
        cache_salt: prefixes are shared among requests with the same salt only.
        use_prefix_cache: False computes the whole prompt anew.
    """

    temperature: float
    top_p: float
    top_k: int
    ignore_eos: bool
    max_tokens: int | None
    logprobs: bool | int
    prompt_logprobs: bool | int
    top_logprobs: int
    first_n_token_no_eos: int
    eos_id: int
    so_args: dict[str, Any] | None
    golden_token_ids: list[int] | None
    seq_seed: int | None
    n: int
    min_p: float
    min_tokens: int
    stop: list[str] | None
    stop_token_ids: list[int] | None
    include_stop_str_in_output: bool
    bad_words: list[str] | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[int, float] | None
    allowed_token_ids: list[int] | None
    logprobs_mode: str
    echo: bool
    skip_special_tokens: bool
    priority: int
    timeout: float | None
    cache_salt: str | None
    use_prefix_cache: bool

    def __init__(
        self,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        ignore_eos: bool = False,
        max_tokens: int | None = 16,
        logprobs: bool | int | None = False,
        prompt_logprobs: bool | int | None = False,
        top_logprobs: int = 0,
        first_n_token_no_eos: int = 0,
        eos_id: int = 0,
        so_args: Mapping[str, Any] | None = None,
        golden_token_ids: Sequence[int] | None = None,
        seq_seed: int | None = None,
        *,
        n: int = 1,
        min_p: float = 0.0,
        min_tokens: int = 0,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        include_stop_str_in_output: bool = False,
        bad_words: str | Sequence[str] | None = None,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[Any, float] | None = None,
        allowed_token_ids: Sequence[int] | None = None,
        logprobs_mode: str = "raw",
        echo: bool = False,
        skip_special_tokens: bool = False,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str | None = None,
        use_prefix_cache: bool = True,
        **aliases: Any,
    ) -> None:
        values = dict(locals())
        given = {}  # the field's name -> the alias by which it came
        for alias, value in aliases.items():
            name = _ALIASES.get(alias)
            if name is None:
                raise _unknown(alias)
            if name in given:
                raise TypeError(f"{given[name]} and {alias} are the same; give one")
            if values[name] != _DEFAULTS[name]:
                raise TypeError(f"{name} and {alias} are the same; give one")
            given[name] = alias
            values[name] = value
        for name in _CHECKS:
            setattr(self, name, values[name])
        self._check_together()

    def __setattr__(self, name: str, value: Any) -> None:
        field = _ALIASES.get(name, name)
        check = _CHECKS.get(field)
        if check is None:
            raise _unknown(name, AttributeError)
        object.__setattr__(self, field, check(name, value))

    def __getattr__(self, name: str) -> Any:  # only what is not there comes here
        field = _ALIASES.get(name)
        if field is None:
            raise _unknown(name, AttributeError)
        return getattr(self, field)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SamplingParams) and self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        """What differs from the defaults."""
        told = (f"{name}={getattr(self, name)!r}" for name in _CHECKS
                if getattr(self, name) != _DEFAULTS[name])
        return f"SamplingParams({', '.join(told)})"

    def clone(self) -> SamplingParams:
        """An independent copy."""
        return SamplingParams(**{name: getattr(self, name) for name in _CHECKS})

    @property
    def num_top_logprobs(self) -> int:
        """How many of the likeliest tokens are told: top_logprobs, or the number that logprobs or
        prompt_logprobs is."""
        numbers = [int(v) for v in (self.logprobs, self.prompt_logprobs) if not isinstance(v, bool)]
        return max([self.top_logprobs, *numbers])

    def _check_together(self) -> None:
        """What depends on two fields; checked when a request is made, too."""
        numbers = {name: value for name in ("logprobs", "prompt_logprobs", "top_logprobs")
                   if not isinstance(value := getattr(self, name), bool) and
                   not (name == "top_logprobs" and value == 0)}
        if len(set(numbers.values())) > 1:
            told = ", ".join(f"{name} is {value}" for name, value in numbers.items())
            raise ValueError(f"{told}: one number serves all of them")
        if self.golden_token_ids and self.n > 1:
            raise ValueError(f"n is {self.n}, with golden_token_ids only 1 is allowed")
        least = max(self.min_tokens, self.first_n_token_no_eos)
        if self.max_tokens is not None and least > self.max_tokens:
            raise ValueError(f"min_tokens is {least}, max_tokens only {self.max_tokens}")

    def _to_c(self, seed: int | None) -> tuple[_library.RequestParams, list[Any]]:
        """The library's struct, and what it points to, which must live as long. `seed` is for
        requests that bring none."""
        self._check_together()
        lib = _library.library()
        c = _library.RequestParams()
        lib.di_request_params_init(None, c, ctypes.sizeof(c))
        keep: list[Any] = []
        for name in ("temperature", "top_p", "top_k", "min_p", "ignore_eos", "n", "echo",
                     "repetition_penalty", "presence_penalty", "frequency_penalty",
                     "skip_special_tokens", "priority"):
            setattr(c, name, getattr(self, name))
        seed = self.seq_seed if self.seq_seed is not None else seed
        c.has_seed, c.seed = seed is not None, seed or 0
        c.max_tokens = self.max_tokens or 0
        c.min_tokens = max(self.min_tokens, self.first_n_token_no_eos)
        c.prompt_logprobs = self.prompt_logprobs is not False
        c.logprobs = self.logprobs is not False or (self.top_logprobs > 0 and not c.prompt_logprobs)
        c.top_logprobs = self.num_top_logprobs
        c.processed_logprobs = self.logprobs_mode == "processed"
        c.include_stop = self.include_stop_str_in_output
        c.deadline = self.timeout or 0
        c.no_prefix_cache = not self.use_prefix_cache
        c.cache_salt = None if self.cache_salt is None else self.cache_salt.encode()
        for name in ("stop", "bad_words"):
            _point(c, name, ctypes.c_char_p, [t.encode() for t in getattr(self, name) or ()], keep)
        for name in ("stop_token_ids", "golden_token_ids"):
            _point(c, name, ctypes.c_int32, getattr(self, name) or (), keep)
        if self.allowed_token_ids is not None:  # an empty list allows nothing, and is refused
            _point(c, "allowed_token_ids", ctypes.c_int32, self.allowed_token_ids, keep, True)
        self._structure_to_c(c, keep)
        bias = [_library.Bias(token, value) for token, value in (self.logit_bias or {}).items()]
        _point(c, "logit_bias", _library.Bias, bias, keep)
        return c, keep


    def _structure_to_c(self, c: _library.RequestParams, keep: list[Any]) -> None:
        so = self.so_args
        if so is None:
            return
        c.schema_type = _SCHEMA_TYPES[so["schema_type"]]
        c.schema = None if so["schema"] is None else so["schema"].encode()
        c.schema_strict = so.get("strict", c.schema_type == _SCHEMA_TYPES["json"])
        c.schema_lenient = so.get("lenient", False)
        c.schema_any_order = so.get("any_order", False)
        c.schema_max_whitespace = so.get("max_whitespace", c.schema_max_whitespace)
        _point(c, "trigger_token_ids", ctypes.c_int32, so.get("trigger_token_ids") or (), keep)
        bound = so.get("bound_token_id")
        c.bound_token_id = -1 if bound is None else bound


def _point(c: _library.RequestParams, name: str, kind: Any, values: Sequence[Any],
           keep: list[Any], even_empty: bool = False) -> None:
    """Lets c.NAME and c.num_NAME describe an array of the values."""
    if values or even_empty:
        array = (kind * max(len(values), 1))(*values)
        keep.append(array)
        setattr(c, name, ctypes.cast(array, ctypes.POINTER(kind)))
        setattr(c, "num_" + name, len(values))


def _unknown(name: str, error: type[Exception] = TypeError) -> Exception:
    if name in _STRUCTURED:
        return error(f"SamplingParams has no {name!r}; structured output is asked for with "
                     "so_args={'schema_type': ..., 'schema': ...}")
    near = difflib.get_close_matches(name, [*_CHECKS, *_ALIASES], n=1)
    return error(f"SamplingParams has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


_DEFAULTS: dict[str, Any] = {
    name: (SamplingParams.__init__.__defaults__ or ())[i]
    for i, name in enumerate(list(_CHECKS)[: len(SamplingParams.__init__.__defaults__ or ())])
}
_DEFAULTS.update(SamplingParams.__init__.__kwdefaults__ or {})
