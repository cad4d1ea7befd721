"""The parameters of a plain object as text: of an instance of a user's class that has no `__repr__` of its own."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from hashlib import blake2b
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["digest_of", "parameters_of"]

_SIMPLE_KINDS = (type(None), bool, int, float, complex, str, bytes)
_ARRAY_KINDS = "biufcSU"
_MAX_DEPTH = 8
_MAX_VALUES = 10_000
_MAX_CHARACTERS = 200
_MAX_ARRAY_BYTES = 1 << 20
_MRO: Any = type.__dict__["__mro__"]  # these read a class as it is, whatever its metaclass does
_NAMESPACE: Any = type.__dict__["__dict__"]
_NAME: Any = type.__dict__["__qualname__"]


class _NoTextError(Exception):
    """A value has no text that is surely equal in all processes."""


def parameters_of(value: object) -> str:
    """Return the parameters of an object as text, such as `(p=0.5, size=[2, 3])`; empty if none can be told.

    Parameters are those attributes that are named as a parameter of `__init__`, whatever underscores precede the name.
    Others may count calls, keep what was computed, or name the process. A parameter is left out if its value, or a part
    of it, is something else than a number, a text, an array, a function, a collection of these, or another such object;
    and if it is an absolute path, since folders differ from machine to machine.

    No code of the user is called. Long texts are told by a digest, and arrays by dtype, shape and, up to a megabyte, a
    digest. A parameter of more than eight levels or 10,000 values is left out, at least in part.
    """
    return _parameters(value, None, 0)


def digest_of(value: object) -> str:
    """Return a digest of a value of the same kinds, which does not give the value away; empty if it has none."""
    with suppress(_NoTextError):
        return _digest(_text(value, [_MAX_VALUES], 0).encode("utf-8", "surrogatepass"))
    return ""


def _parameters(value: object, left: list[int] | None, depth: int) -> str:
    found = []
    names = set(_names_of_parameters(type(value)))
    held = {}
    for name, each in _attributes(value).items():
        own = name.lstrip("_")
        held[own if own in names else name.rpartition("__")[2]] = each  # the latter if Python has mangled the name
    for name in sorted(names.intersection(held)):
        with suppress(_NoTextError, RuntimeError):  # another thread may change a collection
            found.append(f"{name}={_text(held[name], left or [_MAX_VALUES], depth + 1)}")
    return f"({', '.join(found)})" if found else ""


def _text(value: Any, left: list[int], depth: int) -> str:
    left[0] -= 1
    if left[0] < 0 or depth > _MAX_DEPTH:
        raise _NoTextError
    kind = type(value)  # `isinstance` might ask the object
    if kind in _SIMPLE_KINDS:
        if kind is str and value.startswith("/"):
            raise _NoTextError
        return _shortened(repr(value))
    if issubclass(kind, Enum):
        return f"{_NAME.__get__(kind)}.{object.__getattribute__(value, '_name_')}"
    if (text := _text_of_collection(value, kind, left, depth)) is not None:
        return _shortened(text)
    if kind in {FunctionType, BuiltinFunctionType, np.ufunc}:
        return _named(value)
    if kind is MethodType and type(value.__func__) is FunctionType:
        return f"{_named(value.__func__)}{_parameters(value.__self__, left, depth)}"
    if kind is partial:
        return f"partial({', '.join(_texts((value.func, value.args, value.keywords), left, depth))})"
    if kind is type:
        return str(_NAME.__get__(value))
    if (text := _text_of_array(value, kind)) is not None:
        return text
    if not _is_of_user(kind):
        raise _NoTextError
    return f"{_NAME.__get__(kind).rpartition('<locals>.')[2]}{_parameters(value, left, depth)}"


def _texts(values: Iterable[Any], left: list[int], depth: int) -> Iterator[str]:
    return (_text(each, left, depth + 1) for each in values)


def _text_of_collection(value: Any, kind: type, left: list[int], depth: int) -> str | None:
    # The methods of the base classes are called: those of a derived class may be the user's.
    if issubclass(kind, list):
        return f"[{', '.join(_texts(list.__iter__(value), left, depth))}]"
    if issubclass(kind, tuple):
        return f"[{', '.join(_texts(tuple.__iter__(value), left, depth))}]"
    if issubclass(kind, dict):
        items = sorted(": ".join(_texts(item, left, depth)) for item in dict.items(value))
        return f"{{{', '.join(items)}}}"
    if issubclass(kind, set):
        return f"{{{', '.join(sorted(_texts(set.__iter__(value), left, depth)))}}}"
    if issubclass(kind, frozenset):
        return f"{{{', '.join(sorted(_texts(frozenset.__iter__(value), left, depth)))}}}"
    return None


def _text_of_array(value: Any, kind: type) -> str | None:
    torch = sys.modules.get("torch")
    if kind is np.ndarray or kind in np.sctypeDict.values():
        array = np.asarray(value)
        return _text_of_bytes(array.dtype.newbyteorder("<").str, array)
    if torch is not None and kind is torch.Tensor:
        if value.layout != torch.strided or value.device.type != "cpu":
            raise _NoTextError
        values = value.detach().contiguous().resolve_conj().resolve_neg()
        return _text_of_bytes(str(value.dtype), values.reshape(-1).view(torch.uint8).numpy(), shape=value.shape)
    return None


def _text_of_bytes(dtype: str, array: NDArray[Any], shape: Iterable[int] | None = None) -> str:
    if array.dtype.kind not in _ARRAY_KINDS:  # its bytes may hold addresses
        raise _NoTextError
    sizes = list(array.shape if shape is None else shape)
    if array.nbytes > _MAX_ARRAY_BYTES:
        return f"array({dtype}, {sizes})"
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return f"array({dtype}, {sizes}, {_digest(little.tobytes())})"


def _is_of_user(kind: type) -> bool:
    """Return whether a class was written in Python, and not for Python: locks, pools and files may be made late."""
    namespaces = [_NAMESPACE.__get__(each) for each in _MRO.__get__(kind)]
    module = namespaces[0].get("__module__")
    is_python = any(type(each) is FunctionType for namespace in namespaces for each in namespace.values())
    return is_python and type(module) is str and module.partition(".")[0] not in sys.stdlib_module_names


def _names_of_parameters(kind: type) -> Iterator[str]:
    for each in _MRO.__get__(kind):
        function = _NAMESPACE.__get__(each).get("__init__")
        while type(function) is FunctionType:
            code = function.__code__
            num_names = code.co_argcount + code.co_kwonlyargcount
            num_names += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
            yield from code.co_varnames[1:num_names]
            function = function.__dict__.get("__wrapped__")  # of a decorator


def _attributes(value: object) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for each in _MRO.__get__(type(value)):
        for name, member in _NAMESPACE.__get__(each).items():
            if name == "__dict__" and type(member) is GetSetDescriptorType:
                found |= {key: held for key, held in member.__get__(value).items() if type(key) is str}
            elif type(member) is MemberDescriptorType:  # of `__slots__`
                with suppress(AttributeError):
                    found.setdefault(name, member.__get__(value))
    return found


def _named(function: Any) -> str:
    return str(getattr(function, "__qualname__", function.__name__)).rpartition("<locals>.")[2]


def _shortened(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}... {_digest(text.encode('utf-8', 'surrogatepass'))}"


def _digest(data: bytes) -> str:
    return f"#{blake2b(data, digest_size=8).hexdigest()}"
