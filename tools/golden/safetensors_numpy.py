"""Safetensors files as numpy arrays; types numpy lacks come as raw bytes with their name."""
import json
import struct

import numpy as np

_NUMPY = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "U8": np.uint8, "BF16": np.uint16,
          "F8_E4M3": np.uint8, "F8_E8M0": np.uint8}


def read(path):
    """name -> (type name, array); BF16 and FP8 arrays hold the codes."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[begin:end], _NUMPY[entry["dtype"]]).reshape(entry["shape"])
        out[name] = (entry["dtype"], array)
    return out


def write(path, arrays, metadata):
    """name -> float32 or int32 array."""
    names = {np.dtype(np.float32): "F32", np.dtype(np.int32): "I32"}
    header, at = {"__metadata__": metadata}, 0
    for name, array in sorted(arrays.items()):
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape),
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in sorted(arrays.items()):
            file.write(array.tobytes())
