"""Settings of the whole process that change results: precision, determinism, autocast, kernels that may be taken."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import backends

__all__ = ["DEVICES", "dtype_name", "flags", "set_flags"]

DEVICES = ("cuda", "xpu")
"""Kinds of devices, beside the processor, whose generators and autocast there are."""

# Attributes by place. Those that this version of torch lacks are left out.
_ATTRIBUTES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "cudnn": (backends.cudnn, ("enabled", "benchmark", "deterministic")),
    "mkldnn": (backends.mkldnn, ("enabled", "deterministic")),
    "cuda_matmul": (
        backends.cuda.matmul,
        ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation"),
    ),
    "uninitialized": (torch.utils.deterministic, ("fill_uninitialized_memory",)),
}
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
# Where torch, from 2.9 on, has the precision of float32 arithmetic.
_PRECISIONS = ("", "cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn", "mkldnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of a type, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def _set_autocast(states: Mapping[str, tuple[bool, str]]) -> None:
    for device, (enabled, dtype) in states.items():
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, getattr(torch, dtype))


def _attributes() -> dict[str, dict[str, object]]:
    return {where: {name: getattr(place, name) for name in names if hasattr(place, name)} for where, (place, names) in _ATTRIBUTES.items()}


def _set_attributes(values: Mapping[str, Mapping[str, object]]) -> None:
    for where, named in values.items():
        place, _ = _ATTRIBUTES[where]
        for name, value in named.items():
            if getattr(place, name) != value:
                setattr(place, name, value)


def _attention() -> dict[str, bool]:
    asked = {name: getattr(backends.cuda, f"{name}_sdp_enabled", None) for name in _ATTENTION}
    return {name: ask() for name, ask in asked.items() if ask is not None}


def _set_attention(enabled: Mapping[str, bool]) -> None:
    for name, value in enabled.items():
        getattr(backends.cuda, f"enable_{name}_sdp")(value)


def _place(name: str) -> Any:  # noqa: ANN401  (a module, or what stands for one)
    return operator.attrgetter(name)(backends) if name else backends


def _precision() -> dict[str, object]:
    """Returns the precision of float32 arithmetic.

    Torch has two interfaces for it, and refuses the older one once the newer one was used.
    """
    try:
        return {"matmul": torch.get_float32_matmul_precision(), "tf32": (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32)}
    except RuntimeError:
        return {"newer": {name: _place(name).fp32_precision for name in _PRECISIONS}}


def _set_precision(values: Mapping[str, Any]) -> None:
    if "newer" not in values:
        torch.set_float32_matmul_precision(values["matmul"])
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = values["tf32"]
        return
    for name, value in values["newer"].items():
        if _place(name).fp32_precision != value:
            _place(name).fp32_precision = value


# The number of threads is one of them: it decides how sums are split.
_FLAGS: dict[str, tuple[Callable[[], object], Callable[[Any], object]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "default_dtype": (lambda: dtype_name(torch.get_default_dtype()), lambda name: torch.set_default_dtype(getattr(torch, name))),
    "deterministic": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda flags: torch.use_deterministic_algorithms(flags[0], warn_only=flags[1]),
    ),
    "float32_precision": (_precision, _set_precision),
    "attributes": (_attributes, _set_attributes),
    "attention": (_attention, _set_attention),
    "autocast": (
        lambda: {device: (torch.is_autocast_enabled(device), dtype_name(torch.get_autocast_dtype(device))) for device in ("cpu", *DEVICES)},
        _set_autocast,
    ),
    "autocast_cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
}


def flags() -> dict[str, object]:
    """Returns the settings as plain values."""
    return {name: get() for name, (get, _) in _FLAGS.items()}


def set_flags(values: Mapping[str, object]) -> None:
    """Sets the settings that differ from `values`, as `flags` returned them."""
    for name, (get, put) in _FLAGS.items():
        # Some setters import half of torch, so only what differs is set.
        if get() != values[name]:
            put(values[name])
