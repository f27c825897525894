"""Number formats of the released checkpoint, in NumPy, and a reader/writer of safetensors.

Values of every narrow format are carried in float32 arrays: BF16, E4M3, E2M1 and the powers of
two of E8M0 are all exact there.
"""

import json
import lzma
import struct
from pathlib import Path

import numpy as np

F32 = np.float32
INV448 = np.array([0x3B124925], np.uint32).view(F32)[0]
INV6 = np.array([0x3E2AAAAB], np.uint32).view(F32)[0]
E2M1_GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F32)

ITEM_BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


# ---- rounding ------------------------------------------------------------------------


def bf16(x):
    """Round to the nearest BF16, ties to even; the result stays float32."""
    bits = np.ascontiguousarray(x, F32).view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(F32)


def pow2_ceil(t):
    """Smallest power of two >= t, from the bits of a normal float32 t > 0."""
    bits = np.ascontiguousarray(t, F32).view(np.uint32)
    exponent = ((bits >> 23) & 255).astype(np.int32) - 127 + ((bits & 0x7FFFFF) != 0)
    return np.ldexp(F32(1), exponent)


def cast_e4m3(x):
    """Nearest E4M3 value after clamping to +-448, ties to even, subnormals included."""
    x = np.clip(np.asarray(x, F32), -448, 448)
    _, exponent = np.frexp(np.abs(x))
    step = np.ldexp(F32(1), np.maximum(exponent - 1, -6) - 3)
    return np.copysign(np.rint(np.abs(x) / step) * step, x)


def cast_e2m1(x):
    """Nearest E2M1 value of |x| <= 6, ties to the even code, sign kept also of zero."""
    a = np.abs(np.asarray(x, F32))
    step = np.where(a < 2, F32(0.5), np.where(a < 4, F32(1), F32(2)))
    return np.copysign(np.rint(a / step) * step, x)


# ---- activation quantisers: return (codes as values, one scale a group) ---------------


def _grouped(x, group):
    return np.asarray(x, F32).reshape(*x.shape[:-1], x.shape[-1] // group, group)


def quant_q8(x):
    g = _grouped(x, 32)
    scale = pow2_ceil(np.maximum(np.abs(g).max(-1), F32(1e-4)) * INV448)
    return cast_e4m3(g / scale[..., None]), scale


def quant_q4k(x):
    g = _grouped(x, 16)
    scale = cast_e4m3(np.maximum(np.abs(g).max(-1), F32(6 * 2.0**-9)) / F32(6))
    return cast_e2m1(np.clip(g / scale[..., None], -6, 6)), scale


def quant_q4i(x):
    g = _grouped(x, 32)
    scale = pow2_ceil(np.maximum(np.abs(g).max(-1), F32(6 * 2.0**-126)) * INV6)
    return cast_e2m1(np.clip(g / scale[..., None], -6, 6)), scale


def round_trip(quantiser, x):
    """Quantise and come back: the values that the caches hold."""
    codes, scale = quantiser(x)
    return bf16(codes * scale[..., None]).reshape(x.shape)


# ---- bytes <-> values -----------------------------------------------------------------------

_E4M3_BYTE = np.arange(256)
_E4M3_EXP, _E4M3_MAN = (_E4M3_BYTE >> 3) & 15, _E4M3_BYTE & 7
E4M3_VALUES = np.where(
    _E4M3_EXP == 0,
    np.ldexp(_E4M3_MAN.astype(F32), -9),
    np.ldexp((8 + _E4M3_MAN).astype(F32), _E4M3_EXP - 10),
) * np.where(_E4M3_BYTE & 128, F32(-1), F32(1))
E4M3_VALUES[[0x7F, 0xFF]] = np.nan


def encode_e4m3(v):
    """Byte of a float32 that is exactly an E4M3 value."""
    magnitude = np.searchsorted(E4M3_VALUES[:127], np.abs(v)).astype(np.uint8)
    return magnitude | (np.signbit(v).astype(np.uint8) << 7)


def encode_e2m1(v):
    """4-bit code of a float32 that is exactly an E2M1 value."""
    magnitude = np.searchsorted(E2M1_GRID, np.abs(v)).astype(np.uint8)
    return magnitude | (np.signbit(v).astype(np.uint8) << 3)


def decode_e2m1(code):
    return np.where(code & 8, -E2M1_GRID[code & 7], E2M1_GRID[code & 7])


def pack_nibbles(codes):
    """[.., k] 4-bit codes -> [.., k/2] bytes, even column in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed):
    out = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    out[..., 0::2], out[..., 1::2] = packed & 15, packed >> 4
    return out


def encode_e8m0(power):
    return (np.frexp(power)[1] - 1 + 127).astype(np.uint8)


def decode_e8m0(byte):
    return np.ldexp(F32(1), byte.astype(np.int32) - 127)


def bf16_bits(x):
    return (np.ascontiguousarray(x, F32).view(np.uint32) >> 16).astype(np.uint16)


def bf16_values(bits):
    return (bits.astype(np.uint32) << 16).view(F32)


# ---- safetensors ----------------------------------------------------------------------------


def write_safetensors(path, tensors, metadata=None):
    """tensors: {name: (safetensors dtype, shape, array of raw items)}; written in dict order."""
    header, offset, blobs = {"__metadata__": metadata or {"format": "pt"}}, 0, []
    for name, (dtype, shape, data) in tensors.items():
        blob = np.ascontiguousarray(data).tobytes()
        assert len(blob) == int(np.prod(shape)) * ITEM_BYTES.get(dtype, data.itemsize), name
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(b"".join([struct.pack("<Q", len(text)), text, *blobs]))


_NUMPY_OF = {"F32": F32, "BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8,
             "I8": np.uint8, "I32": np.int32, "I64": np.int64, "U8": np.uint8, "F64": np.float64}


def read_safetensors(path):
    """-> {name: (dtype, raw array)}; a path ending in .xz is unpacked first."""
    raw = Path(path).read_bytes()
    raw = lzma.decompress(raw) if Path(path).suffix == ".xz" else raw
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = (8 + length + o for o in entry["data_offsets"])
        items = np.frombuffer(raw[begin:end], _NUMPY_OF[entry["dtype"]])
        out[name] = (entry["dtype"], items.reshape(entry["shape"]))
    return out
