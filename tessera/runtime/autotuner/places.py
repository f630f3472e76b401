"""Where what is tuned runs: the same arguments may lie in a GPU's memory or the host's, and GPUs may differ."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from tessera.runtime.benchmark import Timer, timer_on_host
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.driver import driver


def place_of_launch(values: Iterable[object]) -> list[str]:
    """Return what tells a launch with these arguments from those that run elsewhere on this machine, nothing if there
    is no such place: the driver's name if kernels run on the host, the GPU's name if they differ."""
    if (chosen := driver.for_arguments(values)).on_host:
        return [chosen.name] if cuda.available() else []
    torch = cuda.torch_cuda()
    if torch is not None and torch.cuda.is_initialized() and (names := different_gpus()):
        return [names[torch.cuda.current_device()]]
    return []


def timer_for(timer: Timer, values: Iterable[object]) -> Timer:
    """Return what times launches with these arguments as `timer` does."""
    return timer_on_host(timer) if driver.for_arguments(values).on_host else timer


@cache
def different_gpus() -> tuple[str, ...]:
    """Return the name of each GPU, as torch sees them, if the machine has different ones; otherwise ()."""
    torch = cuda.torch_cuda()
    names = [torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())]
    return tuple(names) if len(set(names)) > 1 else ()
