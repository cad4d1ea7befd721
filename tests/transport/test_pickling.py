"""Work is pickled with all that the script defines, in processes that `multiprocessing` has spawned too."""

import importlib.util
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from mpload.transport.pickling import pickle_work, pickled_for_workers

SCRIPT = """
    from functools import lru_cache
    from typing import Generic, TypeVar

    T = TypeVar("T")

    class Numbers(Generic[T]):
        def __getitem__(self, number):
            return plus_one(number)

    def plus_one(number):
        return number + 1

    @lru_cache
    def cached(number):
        return plus_one(number)
"""
NAME = "__mp_main__"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script's module, as `multiprocessing` makes it in a process that it spawns."""
    module = ModuleType(NAME)
    exec(textwrap.dedent(SCRIPT), vars(module))
    monkeypatch.setitem(sys.modules, NAME, module)
    yield module
    assert NAME not in cloudpickle.list_registry_pickle_by_value()


@pytest.mark.parametrize("pickled", [pickled_for_workers, lambda value: pickle_work(value)[0]])
def test_what_the_script_of_a_spawned_process_defines_needs_no_module(
    script: ModuleType, pickled: Callable[[object], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {"numbers": script.Numbers(), "plus_one": script.plus_one}
    written = pickled(values)
    monkeypatch.delitem(sys.modules, NAME)
    read = pickle.loads(written)
    assert (read["numbers"][1], read["plus_one"](2)) == (2, 3)


def test_a_cached_function_of_the_script_of_a_spawned_process_is_pickled(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, _ = pickle_work(script.cached)
    monkeypatch.delitem(sys.modules, NAME)
    assert pickle.loads(written)(3) == 4


def test_what_the_user_has_registered_with_cloudpickle_stays_registered(script: ModuleType) -> None:
    cloudpickle.register_pickle_by_value(script)
    try:
        pickled_for_workers(script.plus_one)
        assert NAME in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(script)


def test_a_process_and_its_forks_find_a_class_of_the_script_by_its_name(script: ModuleType) -> None:
    assert pickle.loads(pickled_for_workers(script.Numbers)) is script.Numbers


def test_modules_that_workers_can_import_are_pickled_by_name() -> None:
    assert b"OrderedDict" in pickled_for_workers(__import__("collections").OrderedDict)
    assert len(pickled_for_workers(textwrap.dedent)) < 100


def test_a_module_that_was_loaded_by_its_path_is_pickled_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiment_7.py").write_text(textwrap.dedent(SCRIPT))
    spec = importlib.util.spec_from_file_location("experiment_7", tmp_path / "experiment_7.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "experiment_7", module)
    spec.loader.exec_module(module)
    for value in (module.Numbers, module.plus_one):  # forks have the module
        assert pickle.loads(pickled_for_workers(value)) is value
    pickled, _ = pickle_work((module.Numbers(), module.cached, module))
    monkeypatch.delitem(sys.modules, "experiment_7")
    numbers, cached, copy = pickle.loads(pickled)
    assert (numbers[1], cached(2), copy.plus_one(3)) == (2, 3, 4)
    assert cloudpickle.list_registry_pickle_by_value() == set()
