"""The parts of a PyTorch job's state: answers to `forebay.clone`'s inventory for torch."""

import contextlib
import functools
import math
import secrets
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed, nn
from torch.optim import Optimizer

from forebay import _core
from forebay.clone._adapter import BeforeStep, Component, Described, TensorMemory, TensorRecord, Watch
from forebay.clone._errors import DamagedError, UndescribableError
from forebay.clone._manifest import Layout, Placement
from forebay.clone._values import Path, spelled
from forebay.torch._attributes import Attributes
from forebay.torch._backward import BackwardSteps
from forebay.torch._changes import change as change
from forebay.torch._changes import optimizers
from forebay.torch._flags import dtype_name, flags, set_flags
from forebay.torch._generators import access as access
from forebay.torch._generators import generator, process_generators, set_process_generators
from forebay.torch._given import check_given, check_kind, check_optimizer, path_of, type_of
from forebay.torch._group import of_group
from forebay.torch._hidden import of_module, of_optimizer
from forebay.torch._modules import plain_kinds, watch
from forebay.torch._objects import state_of
from forebay.torch._staging import inward as inward
from forebay.torch._staging import outward as outward
from forebay.torch._tensors import PLAIN, RecordedTensors, boxes, is_dense, is_dtensor, is_plain, is_sharded, local_part

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# Placement by kind of state, for objects that are described by their state_dict alone. Loaders read different samples
# in each rank, and of other objects nothing is known.
_PLACEMENTS = {kind: Placement.REPLICATED for kind in ("scheduler", "scaler", "counters")}
# Arguments by which a function of torch's writes to what it was given.
_WRITES = frozenset(("inplace", "out", "running_mean"))


def _reading() -> Iterator[CodeType]:
    """Yields the code of functions whose long operations write only to gradients or to their results."""
    # Torch before 2.3 has no such function for the backward pass.
    backward = getattr(torch.autograd.graph, "_engine_run_backward", None)
    for function in (backward, nn.Linear.forward, nn.Conv1d._conv_forward, nn.Conv2d._conv_forward, nn.Conv3d._conv_forward):
        if isinstance(code := getattr(function, "__code__", None), CodeType):
            yield code
    for function in vars(nn.functional).values():
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType) or code.co_filename != nn.functional.__file__ or code.co_name.endswith("_"):
            continue
        if _WRITES.isdisjoint(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
            yield code


_READING = frozenset(_reading())


def _exchange() -> object | None:
    """Returns torch's table of DLPack functions (2.10 or later), which needs no Python call for each tensor.

    None if there is none, or if `_core.Known` can't use it.
    """
    found: object | None = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    with contextlib.suppress(Exception):
        _core.Known.of(found, [torch.empty(1, device="cpu")])
        return found
    return None


_EXCHANGE = _exchange()
# Of torch's own modules those in which an operation may be under way while Python runs.
_INSIDE = ("torch._dynamo.", "torch._functorch.", "torch._inductor.", "torch._library.", "torch._ops.", "torch.utils._python_dispatch.")


def framework() -> str:
    """See `Adapter.framework`."""
    return f"torch {torch.__version__}"


def rank() -> tuple[int, int]:
    """See `Ranks.rank`."""
    return of_group() or (0, 1)


def check(given: Mapping[str, Mapping[str, object]]) -> None:
    """See `Adapter.check`."""
    check_given(given)


def components(kind: str, given: Mapping[str, object]) -> list[Component]:
    """See `Adapter.components`."""
    found = []
    for name, value in given.items():
        path = path_of(kind, name)
        check_kind(kind, path, value)
        if isinstance(value, nn.Module):
            found += _module(_unwrapped(value), path, Placement.LEADING if _broadcasts(value) else Placement.PER_RANK)
        elif isinstance(value, Optimizer):
            found += _optimizer(value, path)
        else:
            found += state_of(value, path, _PLACEMENTS.get(kind, Placement.PER_RANK), portable=kind != "loader" or _is_dealt(value))
    return found


def process(generators: Mapping[str, object]) -> list[Component]:
    """See `Adapter.process`."""
    named = [generator(value, ("generators", "named", name)) for name, value in generators.items()]
    return [
        Component(("flags",), Placement.REPLICATED, flags, set_flags),
        Component(("generators", "process"), Placement.PER_RANK, process_generators, set_process_generators),
        *named,
    ]


def describe(value: object, path: Path) -> Described | None:
    """See `Adapter.describe`."""
    if not isinstance(value, torch.Tensor):
        return None
    is_distributed = is_dtensor(value)
    known = is_distributed or type(value) in PLAIN
    if not known or value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise UndescribableError(
            f"{spelled(path)}: a {type_of(value)}, {value.layout}, on {value.device.type}: its bytes don't say what it is"
        )
    local = local_part(value) if is_distributed else value
    found = _layout(local.dtype, local.shape, local.stride(), local.device.type)
    if found is None:
        raise UndescribableError(f"{spelled(path)}: an expanded tensor, whose elements share memory: keep its contiguous() instead")
    layout, is_in_order = found
    lies = is_in_order and not is_distributed and layout.device == "cpu" and not value.is_conj() and not value.is_neg()
    return Described(layout, length(layout), value.data_ptr() if lies else None, is_distributed and is_sharded(cast("DTensor", value)))


@functools.lru_cache(maxsize=4096)
def _layout(dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], device: str) -> tuple[Layout, bool] | None:
    """Returns the layout in which a tensor is written, and whether its memory has it; None for an expanded tensor.

    Cached: training stands still while all tensors are described.
    """
    if any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True)):
        return None
    has_no_gaps = is_dense(shape, strides)
    name = dtype_name(dtype)
    layout = Layout.of(name, shape, strides, device) if has_no_gaps else Layout.in_order(name, shape, device)
    return layout, has_no_gaps


def plain() -> Sequence[type]:
    """See `Adapter.plain`."""
    return tuple(PLAIN)


def known(tensors: list[torch.Tensor]) -> TensorRecord | None:
    """See `Adapter.known`. What has another device has another address."""
    if not PLAIN.issuperset(map(type, tensors)):
        return None
    if _EXCHANGE is not None:
        # Complex numbers, and what else DLPack has no words for, are asked one by one.
        with contextlib.suppress(BufferError, RuntimeError):
            return _core.Known.of(_EXCHANGE, tensors)
    return RecordedTensors(tensors)


@functools.lru_cache(maxsize=4096)
def length(layout: Layout) -> int:
    """See `Adapter.length`."""
    if not is_dense(layout.shape, layout.strides):
        raise DamagedError(f"a tensor of {layout} would have gaps, or share its elements")
    return math.prod(layout.shape) * _dtype(layout).itemsize


def empty(layout: Layout, buffer: object = None, offset: int = 0) -> torch.Tensor:
    """See `Adapter.empty`."""
    if buffer is not None and layout.device == "cpu" and is_dense(layout.shape, layout.strides):
        elements = torch.frombuffer(buffer, dtype=_dtype(layout), count=math.prod(layout.shape), offset=offset)
        return elements.as_strided(layout.shape, layout.strides)
    return torch.empty_strided(layout.shape, layout.strides, dtype=_dtype(layout), device=layout.device)


def begin(tensor: torch.Tensor) -> int:
    """See `Adapter.begin`."""
    return tensor.data_ptr()


def tensor_length(tensor: torch.Tensor) -> int:
    """See `Adapter.tensor_length`."""
    local = local_part(tensor) if is_dtensor(tensor) else tensor
    return local.numel() * local.element_size()


def lying(tensor: torch.Tensor) -> TensorMemory | None:
    """See `Adapter.lying`."""
    if not is_plain(tensor) or not is_dense(tensor.shape, tensor.stride()):
        return None
    return TensorMemory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)


def why_fixed(tensor: torch.Tensor) -> str:
    """See `Adapter.why_fixed`."""
    if tensor.device.type != "cpu":
        return f"on {tensor.device.type}"
    if lying(tensor) is None:
        return f"a {type_of(tensor)} that is none of torch's own, or one whose elements don't lie in a row"
    uses = getattr(torch._C, "_storage_Use_Count", None)
    if uses is None:
        return f"torch {torch.__version__} does not tell who uses a tensor's memory"
    fresh = torch.empty(1, device="cpu")
    storage, alone = tensor.untyped_storage(), fresh.untyped_storage()
    if storage.is_shared() or not storage.resizable():
        return "NumPy, another library or another process uses its memory"
    if storage.nbytes() != tensor_length(tensor) or uses(storage._cdata) != uses(alone._cdata):
        return "another tensor uses its memory"
    return ""


def move(tensor: torch.Tensor, buffer: object, offset: int) -> None:
    """See `Adapter.move`. By `data`: after `Parameter.set_` DDP would no longer average that parameter's gradients."""
    elements = torch.frombuffer(buffer, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    moved = elements.as_strided(tensor.shape, tensor.stride())
    moved.copy_(tensor.detach())
    tensor.data = moved


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """See `Adapter.versions`. Fused optimizers and `data` leave them as they are."""
    if PLAIN.issuperset(map(type, tensors)):
        # Tensors of inference mode have none.
        with contextlib.suppress(RuntimeError):
            return [tensor._version for tensor in tensors]
    return [_version(tensor) for tensor in tensors]


def _version(tensor: torch.Tensor) -> int:
    local = tensor._local_tensor if is_dtensor(tensor) else tensor
    return 0 if local.is_inference() else local._version


def is_at_rest() -> bool:
    """See `Adapter.is_at_rest`. Compiled code and dispatch modes write before they count a tensor's version."""
    return _is_at_rest(sys._getframe())


def is_reading(frame: FrameType) -> bool:
    """See `Adapter.is_reading`. A hook, or a node in Python of a backward pass, has a frame of its own."""
    return frame.f_code in _READING and _is_at_rest(frame)


def _is_at_rest(frame: FrameType | None) -> bool:
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "__torch_dispatch__" or f"{module}.".startswith(_INSIDE):
            return False
        frame = frame.f_back
    return True


def on_step(given: Mapping[str, Mapping[str, object]], before: BeforeStep, after: Callable[[], None]) -> Callable[[], None]:
    """See `Adapter.on_step`."""
    stepped = optimizers(given)
    steps = BackwardSteps(before, stepped)

    def update(optimizer: Optimizer, *_: object) -> None:
        if len(stepped) > 1:
            steps.before(optimizer)
        else:
            before(None)

    hooks = [
        hook
        for optimizer in stepped
        for hook in (optimizer.register_step_pre_hook(update), optimizer.register_step_post_hook(lambda *_: after()))
    ]

    def remove() -> None:
        for hook in hooks:
            hook.remove()

    return remove


def shared_number() -> int:
    """See `Ranks.shared_number`."""
    number = secrets.randbelow(2**31)
    if rank()[1] == 1:
        return number
    # Where the default process group's tensors have to lie.
    device = torch.device("cuda", torch.cuda.current_device()) if distributed.get_backend() == "nccl" else torch.device("cpu")
    shared = torch.tensor([number], device=device)
    distributed.broadcast(shared, src=0)
    return int(shared.item())


def _dtype(layout: Layout) -> torch.dtype:
    dtype = getattr(torch, layout.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise DamagedError(f"torch has no type {layout.dtype!r}")
    return dtype


def _unwrapped(module: nn.Module) -> nn.Module:
    """Returns the user's own module, without the wrappers of DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(original := getattr(module, "_orig_mod", None), nn.Module):
            module = original
        else:
            return module


def _fixed(path: Path, get: Callable[[], object], *watches: Watch, placement: Placement = Placement.REPLICATED) -> Component:
    return Component(path, placement, get, watches=watches)


def _broadcasts(module: nn.Module) -> bool:
    """Returns whether each forward pass begins with rank 0's buffers in all ranks."""
    while isinstance(original := getattr(module, "_orig_mod", None), nn.Module):
        module = original
    return isinstance(module, nn.parallel.DistributedDataParallel) and bool(module.broadcast_buffers)


def _is_dealt(loader: object) -> bool:
    """Returns whether a loader deals what is left of an epoch to any number of ranks."""
    module = sys.modules.get("forebay.torch._loader")
    return module is not None and isinstance(loader, module.DataLoader)


def _module(module: nn.Module, path: Path, of_buffers: Placement) -> list[Component]:
    def set_gradients(gradients: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in module.named_parameters():
            parameter.grad = _beside(parameter, gradients.get(name))

    def evaluating() -> list[str]:
        # Read whenever the structure has changed.
        attributes.look()
        return [name for name, child in module.named_modules() if not child.training]

    def set_eval(names: list[str]) -> None:
        evaluated = set(names)
        # One by one: Module.train would go down into children.
        for name, child in module.named_modules():
            child.training = name not in evaluated

    # As they were when they were last asked for.
    last: list[weakref.ref[nn.Parameter]] = []

    def parameters() -> dict[str, nn.Parameter]:
        found = dict(module.named_parameters())
        last[:] = map(weakref.ref, found.values())
        return found

    structure = watch(module)
    attributes = Attributes((*path, "attributes"), module.named_modules, lambda: [*module.parameters(), *module.buffers()])
    # To look at these alone takes half as long as to go through all modules once more.
    of_gradients = Watch(lambda: [parameter() for parameter in last], ("grad",))
    return [
        _fixed((*path, "type"), lambda: type_of(module)),
        *_boxes(path, lambda: dict(module.named_parameters()), ("parameters", "gradients"), structure),
        Component((*path, "parameters"), Placement.REPLICATED, parameters, steady=True, watches=(structure,)),
        _fixed((*path, "trainable"), lambda: [name for name, parameter in module.named_parameters() if parameter.requires_grad], structure),
        # Under DDP running statistics differ between ranks.
        _fixed((*path, "buffers"), lambda: dict(module.named_buffers()), structure, placement=of_buffers),
        Component(
            (*path, "gradients"),
            Placement.PER_RANK,
            lambda: {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None},
            set_gradients,
            watches=(structure, of_gradients),
            is_plain=True,
        ),
        Component((*path, "eval"), Placement.REPLICATED, evaluating, set_eval, watches=(structure,), is_plain=True),
        # Before both that follow, which set attributes too.
        attributes.component(),
        _extra(module, path, structure),
        of_module(module, path, structure),
    ]


def _boxes(path: Path, parameters: Callable[[], dict[str, torch.Tensor]], parts: Sequence[str], watched: Watch) -> list[Component]:
    """Returns the component that tells which parts of sharded parameters this rank holds; none if none is sharded.

    Gradients, and tensors of an optimizer's state, are parts like their parameter's.
    """
    if not any(map(is_dtensor, parameters().values())):
        return []

    def tell() -> dict[str, list[list[int]]]:
        found = boxes(parameters())
        return {spelled((part, name)): box for name, box in found.items() for part in parts}

    return [Component((*path, "sharding"), Placement.PER_RANK, tell, watches=(watched,), tells_boxes=True)]


def _extra(module: nn.Module, path: Path, structure: Watch) -> Component:
    """Returns the component of what modules give by `get_extra_state`."""

    def has_extra() -> bool:
        kinds = plain_kinds(module)
        return kinds is None or any(kind.get_extra_state is not nn.Module.get_extra_state for kind in kinds)

    def extra() -> Iterator[tuple[str, nn.Module]]:
        if has_extra():
            children = module.named_modules()
            yield from ((name, child) for name, child in children if type(child).get_extra_state is not nn.Module.get_extra_state)

    def set_extra(states: Mapping[str, object]) -> None:
        for name, child in extra():
            child.set_extra_state(states[name])

    return Component(
        (*path, "extra"),
        Placement.PER_RANK,
        lambda: {name: child.get_extra_state() for name, child in extra()},
        set_extra,
        watches=(structure,),
        reads_more=has_extra,
        draws=True,
    )


def _optimizer(optimizer: Optimizer, path: Path) -> list[Component]:
    """Returns an optimizer's components. Parameter `0.3` is the fourth of the first group."""
    check_optimizer(optimizer, path)

    def parameters() -> dict[str, torch.Tensor]:
        return {f"{g}.{p}": parameter for g, group in enumerate(optimizer.param_groups) for p, parameter in enumerate(group["params"])}

    def state() -> dict[str, object]:
        named = parameters()
        if strangers := len(optimizer.state.keys() - set(named.values())):
            raise UndescribableError(f"{spelled(path)}: {strangers} entries of its state belong to no parameter")
        return {name: optimizer.state[parameter] for name, parameter in named.items() if optimizer.state.get(parameter)}

    def set_state(states: Mapping[str, dict[str, Any]]) -> None:
        for name, parameter in parameters().items():
            optimizer.state.pop(parameter, None)
            if name in states:
                values = states[name]
                # Then they are where they belong.
                if parameter.is_cpu and type(parameter) in PLAIN:
                    optimizer.state[parameter] = values
                else:
                    optimizer.state[parameter] = {key: _beside(parameter, value) for key, value in values.items()}

    def set_groups(groups: list[dict[str, object]]) -> None:
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            for key in group.keys() - values.keys() - {"params"}:
                del group[key]
            group.update(values)

    attributes = Attributes((*path, "attributes"), lambda: [("", optimizer)], lambda: parameters().values())
    whole = Watch(lambda: (optimizer.state, [group["params"] for group in optimizer.param_groups]))
    return [
        _fixed((*path, "type"), lambda: type_of(optimizer)),
        *_boxes(path, parameters, ("state",), whole),
        Component(
            (*path, "parameters"),
            Placement.REPLICATED,
            lambda: {name: _sort(p.dtype, p.shape) for name, p in parameters().items()},
            watches=(whole,),
            shapes=lambda: list(parameters().values()),
        ),
        of_optimizer(optimizer, path),
        attributes.component(),
        Component(
            (*path, "groups"),
            Placement.REPLICATED,
            lambda: [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups],
            set_groups,
        ),
        Component((*path, "state"), Placement.REPLICATED, state, set_state, steady=True, watches=(whole,)),
    ]


@functools.lru_cache(maxsize=4096)
def _sort(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Returns the type and sizes of a parameter in words. Cached: an equal text is not described again."""
    return f"{dtype_name(dtype)} {list(shape)}"


def _beside(parameter: torch.Tensor, value: Any) -> Any:  # noqa: ANN401  (a tensor or a plain value)
    """Returns a parameter's gradient or state on the parameter's device, distributed if the parameter is."""
    if isinstance(value, torch.Tensor) and value.device.type == parameter.device.type:
        # Layouts don't say which of several devices.
        value = value.to(parameter.device)
    if not is_dtensor(parameter) or is_dtensor(value) or not isinstance(value, torch.Tensor):
        return value
    if value.shape != parameter.to_local().shape:
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    return type(parameter).from_local(value, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride())
