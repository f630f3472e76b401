"""Writes a kernel's specialisation as JSON, for cache hooks and `preload`: one process compiles what another one
used."""

from __future__ import annotations

import json
from typing import Any, cast

from tessera.backends.compiler import GPUTarget
from tessera.dtypes import dtype, parse_scalar_type
from tessera.errors import ForeignSpecialization, LaunchError
from tessera.language.callable import JITCallable


def encode(
    name: str, signature: dict[str, Any], keys: Any, options: dict[str, Any], target: GPUTarget
) -> str:
    """Return a specialisation as JSON: types, keys and options by name."""
    fields = {
        "name": name,
        "target": [target.backend, target.arch, target.warp_size],
        "kinds": [_plain(k) for k in signature.values()],
        "keys": [_plain(k) for k in keys],
        "options": {k: _plain(v) for k, v in options.items()},
    }
    return json.dumps(fields)


def decode(
    data: str, name: str, arg_names: list[str], target: GPUTarget, fn: JITCallable
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (pairs, options) of a specialisation of kernel `name`. ForeignSpecialization if it is another kernel's."""
    fields = json.loads(data)
    if fields["name"] != name:
        raise ForeignSpecialization(found=fields["name"], name=name)
    here = [target.backend, target.arch, target.warp_size]
    if fields["target"] != here:
        raise ForeignSpecialization(found=fields["target"], name=here)
    if len(fields["kinds"]) != len(arg_names):
        raise LaunchError(
            f"Specialization data has {len(fields['kinds'])} arguments, {name} has {len(arg_names)}"
        )
    kinds, keys = (tuple(_value(x, fn) for x in fields[k]) for k in ("kinds", "keys"))
    return tuple(zip(kinds, keys, strict=True)), {
        k: _value(v, fn) for k, v in fields["options"].items()
    }


def _plain(x: object) -> Any:
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if isinstance(x, (tuple, list)):
        return {"tuple": [_plain(y) for y in cast("tuple[object, ...]", x)]}
    if isinstance(x, dtype):
        return {"dtype": x.short}
    if isinstance(x, JITCallable):
        return {"function": x.__name__, "key": x.cache_key}
    return {"opaque": repr(x)}


def _value(read: object, fn: JITCallable) -> Any:
    if not isinstance(read, dict):
        return read
    x = cast("dict[str, Any]", read)
    if "tuple" in x:
        return tuple(_value(y, fn) for y in x["tuple"])
    if "dtype" in x:
        return parse_scalar_type(x["dtype"])
    if "function" in x:
        found = fn.closure().get(x["function"], fn.__globals__.get(x["function"]))
        if isinstance(found, JITCallable) and found.cache_key == x["key"]:
            return found
        raise LaunchError(
            f"Specialization data names the function {x['function']}, which is not to be found or has changed"
        )
    raise LaunchError(f"Specialization data holds {x['opaque']}, which JSON cannot carry")
