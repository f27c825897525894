"""DeepInfer: run DeepSeek-V4.1-Flash models.

    from deepinfer import LLM, SamplingParams

    llm = LLM(model="models/demo")
    for answer in llm.chat([{"role": "user", "content": "Who wrote Dracula?"}]):
        print(answer)

A thin layer over libdeepinfer.so: standard library only.
"""

from deepinfer._library import (
    BusyError,
    DeepInferError,
    InvalidRequestError,
    LibraryError,
    OutOfMemoryError,
    UnsupportedError,
    library_path,
    version,
)
from deepinfer.entrypoints.llm import LLM
from deepinfer.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    TokenOutput,
    Usage,
)
from deepinfer.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "SamplingParams",
    "RequestOutput",
    "CompletionOutput",
    "TokenOutput",
    "Logprob",
    "Usage",
    "RequestMetrics",
    "DeepInferError",
    "InvalidRequestError",
    "UnsupportedError",
    "OutOfMemoryError",
    "BusyError",
    "LibraryError",
    "library_path",
    "version",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # the library's, which is read when it is asked for
        return version()
    raise AttributeError(f"module 'deepinfer' has no attribute {name!r}")
