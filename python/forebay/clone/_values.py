"""State other than tensors, as typed JSON: a value is read back with its type, and reading runs no code.

`None`, `bool`, `int`, `str`, finite `float` and lists are JSON's own. All else is an object with its type under `$`:

    {"$": "float", "of": "inf"}                          also "-inf" and "nan" {"$": "bytes", "of": "00ff"} {"$":
    "tuple", "of": [1, 2]} {"$": "dict", "of": [["lr", 0.1], [3, "x"]]}         in the dictionary's order; keys are
    None, bool, int, float, str or tuples of these {"$": "ordered", "of": [...]}, {"$": "counter", ...} OrderedDict
    and Counter, alike {"$": "deque", "of": [1, 2], "maxlen": null}         a deque {"$": "set", "of": [1, 2]}, {"$":
    "frozenset", ...}  sorted by how their items are written {"$": "numpy", "type": "<u4", "shape": [624], "of":
    "00ff..."}    an array, or with shape null a scalar {"$": "tensor"}                                      a tensor,
    which is an entry of its own: the path says which
"""

import collections
import importlib
import json
import math
import sys
from collections.abc import Callable
from typing import Any

from forebay.clone._errors import DamagedError, UndescribableError

__all__ = ["DEPTH_MAX", "Path", "decode", "encode", "spelled"]

Path = tuple[str, ...]
"""Path of a value: `("optimizer", "state", "fc.weight", "exp_avg")`."""

DEPTH_MAX = 64
"""Largest depth of nested containers."""

_NAN_AND_INFINITIES = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_MAPPINGS: dict[str, type] = {"dict": dict, "ordered": collections.OrderedDict, "counter": collections.Counter}
_SETS: dict[str, type] = {"set": set, "frozenset": frozenset}
_MAPPING_TAGS = {kind: tag for tag, kind in _MAPPINGS.items()}
_PLAIN = frozenset((type(None), bool, int, str))
_TENSOR = {"$": "tensor"}
# Truth values, integers, floating point and complex numbers.
_NUMPY_KINDS = "biufc"
# What an object of JSON must have beside "$", by type.
_WITH_ITEMS = ("float", "bytes", "tuple", "set", "frozenset", *_MAPPINGS)
_FIELDS = {"tensor": set(), "deque": {"of", "maxlen"}, "numpy": {"type", "shape", "of"}} | {tag: {"of"} for tag in _WITH_ITEMS}


def spelled(path: Path) -> str:
    """Returns the path as one string, escaped as in JSON pointers: `~` and `/` in a part as `~0` and `~1`."""
    plain = "/".join(path)
    if "~" not in plain and plain.count("/") == len(path) - 1:
        return plain
    return "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


def encode(value: object, path: Path, tensor: Callable[[Path, object], bool]) -> bytes:
    """Writes a value as typed JSON.

    Args:
        value: nested containers of plain values and tensors.
        path: path of the value; errors name it.
        tensor: called for each other leaf than plain values, with its path; records the leaf and returns True if it is
            a tensor.

    Raises:
        UndescribableError: a leaf has an unknown type, or containers are nested deeper than `DEPTH_MAX`.
    """
    return json.dumps(_encoded(value, path, tensor, 0), allow_nan=False, separators=(",", ":")).encode()


def decode(text: bytes, path: Path, tensor: Callable[[Path], object]) -> Any:  # noqa: ANN401  (any plain value)
    """Reads a value that `encode` wrote.

    Args:
        text: typed JSON, not trusted.
        path: path that `encode` was given.
        tensor: returns the tensor of a path.

    Raises:
        DamagedError: the text is not in the form of `encode`.
    """
    try:
        return _decoded(json.loads(text, parse_constant=_no_constant), path, tensor, 0)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{spelled(path)}: not a value as it is sent: {error}") from error


def _encoded(value: object, path: Path, tensor: Callable[[Path, object], bool], depth: int) -> object:
    if depth > DEPTH_MAX:
        raise UndescribableError(f"{spelled(path)}: containers are nested deeper than {DEPTH_MAX}")
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"$": "float", "of": str(value)}
    if isinstance(value, bytes) and kind is bytes:
        return {"$": "bytes", "of": value.hex()}
    if isinstance(value, list | tuple) and kind in (list, tuple):
        # A generator's state is hundreds of numbers.
        if depth < DEPTH_MAX and _PLAIN.issuperset(map(type, value)):
            of = list(value)
        else:
            of = [_encoded(item, (*path, str(index)), tensor, depth + 1) for index, item in enumerate(value)]
        return of if kind is list else {"$": "tuple", "of": of}
    if isinstance(value, dict) and kind in _MAPPING_TAGS:
        pairs = [[_encoded_key(key, path), _encoded(item, (*path, _part(key)), tensor, depth + 1)] for key, item in value.items()]
        if len({_part(key) for key in value}) != len(value):
            raise UndescribableError(f"{spelled(path)}: two keys are written alike, such as 1 and '1'; rename one")
        return {"$": _MAPPING_TAGS[kind], "of": pairs}
    if kind in (collections.deque, set, frozenset):
        return _encoded_collection(value, path, tensor, depth)
    if tensor(path, value):
        return _TENSOR
    if (array := _numpy(value)) is not None:
        return array
    raise UndescribableError(
        f"{spelled(path)}: a {kind.__module__}.{kind.__qualname__} can't be described without pickling it: "
        "keep numbers, text, bytes, tuples, lists, dictionaries, arrays and tensors in the state"
    )


def _encoded_collection(value: Any, path: Path, tensor: Callable[[Path, object], bool], depth: int) -> object:  # noqa: ANN401
    """Writes a deque, or a set, whose items have no order of their own."""
    if isinstance(value, collections.deque):
        return {"$": "deque", "of": _encoded(list(value), path, tensor, depth + 1), "maxlen": value.maxlen}
    of = [_encoded_key(item, path) for item in value]
    return {"$": type(value).__name__, "of": sorted(of, key=json.dumps)}


def _part(key: object) -> str:
    return key if isinstance(key, str) else repr(key)


def _encoded_key(key: object, path: Path) -> object:
    if isinstance(key, tuple) and type(key) is tuple:
        return {"$": "tuple", "of": [_encoded_key(part, path) for part in key]}
    if key is None or type(key) in (bool, int, float, str):
        return _encoded(key, path, lambda *_: False, 0)
    raise UndescribableError(f"{spelled(path)}: a {type(key).__name__} is not a valid key: use text or numbers")


def _numpy(value: Any) -> dict[str, object] | None:  # noqa: ANN401  (numpy is looked at only where the program has imported it)
    numpy = sys.modules.get("numpy")
    if numpy is None or (type(value) is not numpy.ndarray and not isinstance(value, numpy.generic)):
        return None
    if value.dtype.kind not in _NUMPY_KINDS:
        return None
    shape = None if isinstance(value, numpy.generic) else list(value.shape)
    return {"$": "numpy", "type": value.dtype.str, "shape": shape, "of": value.tobytes().hex()}


def _decoded(value: Any, path: Path, tensor: Callable[[Path], object], depth: int) -> Any:  # noqa: ANN401
    if depth > DEPTH_MAX:
        raise ValueError(f"nested deeper than {DEPTH_MAX}")
    if isinstance(value, list):
        return [_decoded(item, (*path, str(index)), tensor, depth + 1) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    tag = value["$"]
    if value.keys() - {"$"} != _FIELDS[tag]:
        raise ValueError(f"wrong fields for {tag}")
    if tag == "tensor":
        return tensor(path)
    of = value["of"]
    if tag == "float":
        return _NAN_AND_INFINITIES[of]
    if tag == "bytes":
        return bytes.fromhex(of)
    if tag == "tuple":
        return tuple(_decoded(_list(of), path, tensor, depth))
    if tag == "numpy":
        return _decoded_numpy(value)
    if tag == "deque":
        return collections.deque(_decoded(_list(of), path, tensor, depth + 1), value["maxlen"])
    if tag in _SETS:
        return _SETS[tag](_decoded(_list(of), path, _no_tensor, depth + 1))
    mapping = _MAPPINGS[tag]()
    for key, item in _list(of):
        if type(key) is not str:
            key = _decoded(key, path, _no_tensor, depth + 1)
        inside = (*path, _part(key))
        # Most values of a state are tensors.
        mapping[key] = tensor(inside) if item == _TENSOR else _decoded(item, inside, tensor, depth + 1)
    return mapping


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not how a float is sent")


def _no_tensor(path: Path) -> None:
    raise ValueError("a tensor is not a valid key")


def _list(of: object) -> list[Any]:
    if not isinstance(of, list):
        raise ValueError("no list where one belongs")
    return of


def _decoded_numpy(value: dict[str, Any]) -> object:
    numpy = importlib.import_module("numpy")
    dtype = numpy.dtype(str(value["type"]))
    if dtype.kind not in _NUMPY_KINDS:
        raise ValueError(f"no array has the type {dtype}")
    array = numpy.frombuffer(bytes.fromhex(value["of"]), dtype).copy()
    if value["shape"] is None:
        return array.reshape(())[()]
    return array.reshape([int(size) for size in _list(value["shape"])])
