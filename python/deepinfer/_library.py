"""libdeepinfer.so: finding it, its structs and functions, and its errors as exceptions.

The structs are described a second time here, so their layout is compared with the library's own
(di_layout) when it is loaded: a library of another version is refused, never misread.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_double, c_float, c_int
from ctypes import c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import lru_cache
from pathlib import Path

API_VERSION = 2

# ---- errors -----------------------------------------------------------------------------------


class DeepInferError(Exception):
    """Something that the engine could not do; `code` is the library's name for the kind."""

    code = "internal"


class InvalidRequestError(DeepInferError, ValueError):
    """A parameter or prompt is outside what is allowed; the message names it."""

    code = "invalid_request"


class UnsupportedError(DeepInferError, NotImplementedError):
    """Well-formed, but nothing that this version can do."""

    code = "unsupported"


class OutOfMemoryError(DeepInferError, MemoryError):
    code = "no_memory"


class BusyError(DeepInferError):
    """max_queue requests are under way; try again later."""

    code = "busy"


class LibraryError(DeepInferError, ImportError):
    """libdeepinfer.so was not found, or is not the one that this package is for."""

    code = "library"


class FileError(DeepInferError, OSError):
    """The system refused to open, read or write a file."""

    code = "io"


_BY_CODE = {
    1: InvalidRequestError,
    2: FileError,
    3: InvalidRequestError,
    4: UnsupportedError,
    5: OutOfMemoryError,
    7: BusyError,
}


# ---- structs ----------------------------------------------------------------------------------


class Error(Structure):
    _fields_ = [("code", c_int), ("message", ctypes.c_char * 512)]

    def exception(self) -> DeepInferError:
        return _BY_CODE.get(self.code, DeepInferError)(self.message.decode("utf-8", "replace"))


Progress = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_int)


class EngineOptions(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("model", c_char_p),
        ("backend", c_char_p),
        ("threads", c_int),
        ("max_model_len", c_int64),
        ("max_num_batched_tokens", c_int),
        ("progress", Progress),
        ("user", c_void_p),
        ("max_num_seqs", c_int),
        ("max_mixed_prefill_tokens", c_int),
        ("max_queue", c_int),
        ("max_logprobs", c_int),
        ("kv_memory", c_int64),
        ("host_memory", c_int64),
        ("no_prefix_cache", c_bool),
        ("synchronous", c_bool),
        ("replay_mode", c_int),
        ("replay_keep_tokens", c_int),
        ("num_drafts", c_int),
        ("time_ops", c_bool),
        ("trace_file", c_char_p),
        ("spec_mode", c_int),
        ("cost_cache", c_char_p),
        ("cost_cache_seconds", c_int),
        ("confidence_temperatures", c_char_p),
        ("gpu_memory", c_int64),
        ("gpu_memory_share", c_double),
        ("no_batch_invariance", c_bool),
    ]


class EngineInfo(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("vocab_size", c_int),
        ("max_model_len", c_int64),
        ("bos_token_id", c_int32),
        ("eos_token_id", c_int32),
        ("has_tokenizer", c_bool),
        ("batch_invariant", c_bool),
        ("weight_bytes", c_int64),
        ("work_bytes", c_int64),
        ("state_bytes", c_int64),
        ("slot_bytes", c_int64),
        ("block_bytes", c_int64),
        ("num_blocks", c_int64),
        ("num_slots", c_int),
        ("num_snapshots", c_int),
        ("block_tokens", c_int),
    ]


class Prompt(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("text", c_char_p),
        ("text_bytes", c_size_t),
        ("token_ids", POINTER(c_int32)),
        ("num_token_ids", c_size_t),
        ("messages", c_char_p),
        ("messages_bytes", c_size_t),
        ("effort", c_int),
    ]


class Bias(Structure):
    _fields_ = [("token_id", c_int32), ("bias", c_float)]


class RequestParams(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("temperature", c_double),
        ("top_p", c_double),
        ("top_k", c_int64),
        ("min_p", c_double),
        ("has_seed", c_bool),
        ("seed", c_uint64),
        ("max_tokens", c_int64),
        ("ignore_eos", c_bool),
        ("logprobs", c_bool),
        ("n", c_int),
        ("repetition_penalty", c_double),
        ("presence_penalty", c_double),
        ("frequency_penalty", c_double),
        ("min_tokens", c_int64),
        ("top_logprobs", c_int),
        ("processed_logprobs", c_bool),
        ("prompt_logprobs", c_bool),
        ("echo", c_bool),
        ("stop", POINTER(c_char_p)),
        ("num_stop", c_size_t),
        ("include_stop", c_bool),
        ("stop_token_ids", POINTER(c_int32)),
        ("num_stop_token_ids", c_size_t),
        ("bad_words", POINTER(c_char_p)),
        ("num_bad_words", c_size_t),
        ("logit_bias", POINTER(Bias)),
        ("num_logit_bias", c_size_t),
        ("allowed_token_ids", POINTER(c_int32)),
        ("num_allowed_token_ids", c_size_t),
        ("golden_token_ids", POINTER(c_int32)),
        ("num_golden_token_ids", c_size_t),
        ("skip_special_tokens", c_bool),
        ("priority", c_int),
        ("deadline", c_double),
        ("no_prefix_cache", c_bool),
        ("cache_salt", c_char_p),
        ("report_prompt", c_bool),
        ("pin_prompt", c_bool),
        ("schema_type", c_int),
        ("schema", c_char_p),
        ("schema_bytes", c_size_t),
        ("trigger_token_ids", POINTER(c_int32)),
        ("num_trigger_token_ids", c_size_t),
        ("bound_token_id", c_int32),
        ("schema_any_order", c_bool),
        ("schema_strict", c_bool),
        ("schema_lenient", c_bool),
        ("schema_max_whitespace", c_int),
    ]


class Logprob(Structure):
    _fields_ = [("token_id", c_int32), ("logprob", c_float)]


class TokenInfo(Structure):
    _fields_ = [("chosen", Logprob), ("num_top", c_int), ("top", POINTER(Logprob))]


class Output(Structure):
    _fields_ = [
        ("request", c_uint64),
        ("tag", c_void_p),
        ("index", c_int),
        ("token_ids", POINTER(c_int32)),
        ("num_token_ids", c_size_t),
        ("text", POINTER(ctypes.c_char)),
        ("text_bytes", c_size_t),
        ("logprobs", POINTER(TokenInfo)),
        ("prompt_logprobs", POINTER(TokenInfo)),
        ("finish_reason", c_int),
        ("stop", c_char_p),
        ("stop_token_id", c_int32),
        ("error", Error),
        ("prompt_done", c_int64),
        ("prompt_tokens", c_int64),
        ("cached_tokens", c_int64),
        ("completion_tokens", c_int64),
        ("seed", c_uint64),
        ("queue_seconds", c_double),
        ("prompt_seconds", c_double),
        ("decode_seconds", c_double),
        ("waited_seconds", c_double),
    ]


class EngineStats(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t),
        *((name, c_uint64) for name in ("steps", "prompt_tokens", "cached_tokens",
                                        "completion_tokens", "requests", "finished", "cancelled",
                                        "failed", "preemptions", "preempted_recomputed",
                                        "preempted_kept")),
        ("running", c_int),
        ("waiting", c_int),
        *((name, c_int64) for name in ("blocks", "blocks_free", "blocks_cached", "block_tokens")),
        ("prefix_tokens_asked", c_uint64),
        ("prefix_tokens_hit", c_uint64),
        ("step_tokens", c_int),
        ("step_sequences", c_int),
        *((name, c_double) for name in ("step_seconds", "host_seconds", "device_seconds",
                                        "device_idle_seconds", "host_seconds_total")),
        *((name, c_uint64) for name in ("draft_rounds", "drafts_verified", "drafts_accepted")),
        ("drafts_verified_at", c_uint64 * 16),
        ("drafts_accepted_at", c_uint64 * 16),
        ("drafts_made_at", c_uint64 * 16),
        ("drafts_tested_at", c_uint64 * 16),
        ("drafts_expected_at", c_double * 16),
        ("draft_lengths", c_uint64 * 17),
        ("priced_steps", c_uint64),
        *((name, c_double) for name in ("priced_seconds_predicted", "priced_seconds_measured",
                                        "priced_seconds_error")),
        ("card_steps", c_uint64),
        ("recorded_steps", c_uint64),
        *((name, c_uint64) for name in ("steps_ahead", "verify_steps", "recorded_verify_steps",
                                        "draft_steps", "recorded_draft_steps", "confidences_broken")),
    ]


class Member(Structure):
    _fields_ = [
        ("structure", c_char_p),
        ("name", c_char_p),
        ("offset", c_size_t),
        ("bytes", c_size_t),
    ]


_STRUCTS = {
    "di_error": Error,
    "di_engine_options": EngineOptions,
    "di_engine_info": EngineInfo,
    "di_prompt": Prompt,
    "di_bias": Bias,
    "di_request_params": RequestParams,
    "di_logprob": Logprob,
    "di_token_info": TokenInfo,
    "di_output": Output,
    "di_engine_stats": EngineStats,
}

# Arrays of these are walked, so their size counts; other structs may grow at the end.
_FIXED = ("di_error", "di_bias", "di_logprob", "di_token_info")

FINISH_REASONS = (None, "stop", "length", "abort", "deadline", "error")

# name: (result, arguments)
_FUNCTIONS = {
    "di_api_version": (c_int, []),
    "di_version": (c_char_p, []),
    "di_layout": (POINTER(Member), [POINTER(c_size_t)]),
    "di_engine_options_init": (None, [POINTER(EngineOptions), c_size_t]),
    "di_engine_open": (c_void_p, [POINTER(EngineOptions), POINTER(Error)]),
    "di_engine_close": (None, [c_void_p]),
    "di_engine_get_info": (None, [c_void_p, POINTER(EngineInfo)]),
    "di_engine_token_bytes": (c_void_p, [c_void_p, c_int32, POINTER(c_size_t)]),
    "di_engine_get_stats": (None, [c_void_p, POINTER(EngineStats)]),
    "di_prompt_init": (None, [POINTER(Prompt), c_size_t]),
    "di_request_params_init": (None, [c_void_p, POINTER(RequestParams), c_size_t]),
    "di_request_params_check": (c_bool, [POINTER(RequestParams), POINTER(Error)]),
    "di_queue_create": (c_void_p, [c_void_p, POINTER(Error)]),
    "di_queue_destroy": (None, [c_void_p]),
    "di_queue_wait": (POINTER(Output), [c_void_p, c_int]),
    "di_output_free": (None, [POINTER(Output)]),
    "di_submit": (
        c_uint64,
        [c_void_p, c_void_p, POINTER(Prompt), POINTER(RequestParams), c_void_p, POINTER(Error)],
    ),
    "di_cancel": (c_bool, [c_void_p, c_uint64]),
}


# ---- finding it -------------------------------------------------------------------------------


def _places() -> list[Path]:
    """Where the library may be, first to last; DEEPINFER_LIBRARY is looked at before, alone."""
    package = Path(__file__).resolve().parent
    places = [
        package / "lib" / "libdeepinfer.so",  # carried by a wheel
        package / "libdeepinfer.so",
        package.parents[1] / "build" / "release" / "libdeepinfer.so",  # a checkout
    ]
    places += [Path(p) / "libdeepinfer.so" for p in ("/usr/local/lib", "/usr/lib", "/usr/lib64")]
    return places


@lru_cache(maxsize=None)
def library_path() -> str:
    """The library that is used; LibraryError naming every place that was tried."""
    named = os.environ.get("DEEPINFER_LIBRARY")
    if named:
        if os.path.isfile(named):
            return named
        raise LibraryError(f"DEEPINFER_LIBRARY is {named!r}, but there is no such file")
    for place in _places():
        if place.is_file():
            return str(place)
    found = ctypes.util.find_library("deepinfer")
    if found:
        return found
    tried = "".join(f"\n  {place}" for place in _places())
    raise LibraryError(
        "libdeepinfer.so was not found. Build it (`make`), install it (`make install`), or name "
        f"it in DEEPINFER_LIBRARY. Tried:{tried}\n  the system's libraries (ldconfig)"
    )


def _check_layout(lib: ctypes.CDLL, path: str) -> None:
    count = c_size_t()
    members = lib.di_layout(byref(count))
    for m in members[: count.value]:
        structure, name = m.structure.decode(), m.name.decode()
        ours = _STRUCTS.get(structure)
        if ours is None:
            continue
        if name:
            field = getattr(ours, name, None)
            right = field is None or (field.offset, field.size) == (m.offset, m.bytes)
        else:
            size = ctypes.sizeof(ours)
            right = size == m.bytes if structure in _FIXED else size <= m.bytes
        if not right:
            raise LibraryError(
                f"{path}: {structure}{'.' if name else ''}{name} lies otherwise than this package "
                "expects; package and library must be of the same version"
            )


@lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The loaded library, checked; every function has its types."""
    path = library_path()
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise LibraryError(f"{path} cannot be loaded: {error}") from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(lib, name, None)
        if function is None:
            raise LibraryError(f"{path} has no {name}; package and library must be of the same "
                               "version")
        function.restype, function.argtypes = result, arguments
    if lib.di_api_version() != API_VERSION:
        raise LibraryError(f"{path} has API version {lib.di_api_version()}, this package is for "
                           f"{API_VERSION}")
    _check_layout(lib, path)
    return lib


def version() -> str:
    """The library's version."""
    return library().di_version().decode()
