"""Numbers drawn as torch's loader draws them, and a look at the next one without drawing it."""

import base64

import torch

from forebay.loader._errors import StateError

__all__ = ["Draws"]


class Draws:
    """Draws seeds as torch's loader and its `RandomSampler` do, from a generator or (None) torch's global one."""

    def __init__(self, generator: torch.Generator | None) -> None:
        self._generator = generator

    def draw(self) -> int:
        """Draws the next seed."""
        return _drawn(self._generator)

    def peek(self) -> int:
        """Returns the seed that `draw` would give now; nothing is drawn, so that any thread may look."""
        copy = torch.Generator(self._own.device)
        copy.set_state(self._own.get_state())
        return _drawn(copy)

    def saved(self) -> str:
        """Returns the generator's state, as text."""
        return base64.b64encode(self._own.get_state().numpy().tobytes()).decode()

    def restore(self, state: str) -> None:
        """Sets the generator to a state that `saved` gave; raises `StateError` if it is damaged, or of another kind."""
        try:
            self._own.set_state(torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8))
        except (RuntimeError, TypeError, ValueError) as error:
            raise StateError(f"generator= can't be set to where it was when the epoch began: {error}") from None

    @property
    def _own(self) -> torch.Generator:
        return torch.default_generator if self._generator is None else self._generator


def _drawn(generator: torch.Generator | None) -> int:
    device = generator.device if generator is not None else None
    return int(torch.empty((), dtype=torch.int64, device=device).random_(generator=generator).item())
