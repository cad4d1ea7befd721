"""Workers get the settings of the script. Those that could make an import fail come after the imports."""

import sys
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mpload.transport.hash_order import digests_of_globals
from mpload.transport.settings import apply_settings, apply_settings_for_imports, changed_settings


class Outer:
    class OwnWarning(UserWarning):
        pass


@pytest.fixture(autouse=True)
def settings_of_this_process() -> Iterator[None]:
    modes, callback = np.geterr(), np.geterrcall()
    with warnings.catch_warnings():
        yield
    np.seterr(**modes)
    np.seterrcall(callback)


def shown(kinds: list[Any]) -> list[Any]:
    """Return those classes of warnings that the filters let through."""
    found = []
    for kind in kinds:
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn_explicit("text", kind, "file.py", 1)  # without a registry, each is the first one
        found += [each.category for each in caught]
    return found


@pytest.mark.parametrize("category", [(FutureWarning, DeprecationWarning), FutureWarning | DeprecationWarning])
def test_a_filter_may_be_about_several_classes(category: Any) -> None:
    warnings.resetwarnings()
    warnings.filters.insert(0, ("ignore", None, category, None, 0))  # type: ignore[attr-defined]
    settings = changed_settings()
    warnings.resetwarnings()
    apply_settings(settings)
    assert shown([FutureWarning, DeprecationWarning, UserWarning]) == [UserWarning]


@pytest.mark.parametrize("entry", [("ignore", None, None, None, 0), ("ignore",), None], ids=str)
def test_an_unusual_entry_of_the_filters_is_left_out(entry: Any) -> None:
    warnings.filters.insert(0, entry)  # type: ignore[attr-defined]
    settings = changed_settings()
    del warnings.filters[0]  # type: ignore[attr-defined]
    apply_settings(settings)


def test_a_class_of_the_script_is_known_although_workers_get_it_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outer.OwnWarning, "__module__", "__main__")
    warnings.simplefilter("ignore", Outer.OwnWarning)
    settings = changed_settings()
    by_value = type("OwnWarning", (UserWarning,), {"__module__": "__main__"})
    warnings.resetwarnings()
    apply_settings(settings)
    assert shown([by_value]) == []


def test_what_raises_in_the_script_raises_nothing_while_workers_import_its_modules() -> None:
    warnings.simplefilter("error", FutureWarning)
    before = np.geterr()
    np.seterr(all="raise")
    settings = changed_settings()
    warnings.resetwarnings()
    np.seterr(**before)
    apply_settings_for_imports(settings)
    assert shown([FutureWarning]) == []
    np.log(np.zeros(1))
    apply_settings(settings)
    with pytest.raises(FutureWarning):
        shown([FutureWarning])
    with pytest.raises(FloatingPointError):
        np.log(np.zeros(1))


def test_the_callable_of_numpy_reaches_workers() -> None:
    called: list[str] = []
    np.seterrcall(lambda kind, _: called.append(kind))
    np.seterr(divide="call")
    settings = changed_settings()
    np.seterrcall(None)
    apply_settings(settings)
    np.log(np.zeros(1))  # calls the copy of it
    lock = threading.Lock()
    np.seterrcall(lambda *_: lock)
    settings = changed_settings()
    apply_settings(settings)
    assert np.geterr()["divide"] == "warn"


class Hostile:
    __slots__ = ("__file__",)

    def __init__(self) -> None:
        self.__file__ = "/home/user/strange.py"


def test_unusual_globals_have_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("strange_module")
    module.__file__ = "/home/user/strange_module.py"
    texts = {f"{'ü' * 80}{number}": [number, 2] for number in range(400)}
    large = {"masks": [1 << 20_000, 3], "texts": ["a" * (1 << 20), "b" * (1 << 20)], "table": [1, 2], "same": (2, 1)}
    vars(module).update({**texts, **large})
    names: Any = vars(module)
    names[3] = [1, 2]
    monkeypatch.setitem(sys.modules, "strange_module", module)
    monkeypatch.setitem(sys.modules, "hostile", Hostile())
    found = digests_of_globals()
    assert {name for name in found if name.startswith(("strange", "hostile"))} == {
        "strange_module.table",
        "strange_module.same",
    }
    assert found["strange_module.table"][0] == found["strange_module.same"][0]
    assert found["strange_module.table"][1] != found["strange_module.same"][1]
