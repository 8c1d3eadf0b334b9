"""What the probe looks at, and that looking changes nothing: walks, ramps, hooks, elements of arrays."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import threading
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.mutation.anchor import Edit, sources
from harness.mutation.campaign import Campaign
from harness.mutation.codetree import compile_source, make_plan
from harness.mutation.diagnosis import arrays, classes, compare, elements, wrapped
from harness.mutation.diagnosis.poison import wrong
from harness.mutation.diagnosis.probe import Probe
from harness.mutation.diagnosis.vary import Vary
from harness.mutation.diagnosis.walk import Walk
from harness.mutation.prepare import make_fault
from harness.mutation.servers import Servers
from harness.mutation.settings import load_settings

REPOSITORY = Path(__file__).parents[2]


def leaves(value: Any, own: Any = lambda cls: False) -> list[tuple[str, str, str]]:
    walk = Walk("", own, arrays.RAW_MAX)
    walk.root("x", value)
    return walk.leaves


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        ("a", b"a"),
        ([1, 2], (1, 2)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.float32(1), np.float64(1)),
        (np.zeros(2), -np.zeros(2)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(2).requires_grad_()),
        (ValueError("a"), KeyError("a")),
        ({1, 2}, {1, 3}),
    ],
)
def test_what_differs_has_other_leaves(one: Any, other: Any) -> None:
    assert leaves(one) != leaves(other)
    assert leaves(one) == leaves(one)


def test_nan_equals_itself_since_bytes_are_compared() -> None:
    for value in (math.nan, np.full(2, math.nan), torch.full((2,), math.nan, dtype=torch.bfloat16)):
        assert leaves([value]) == leaves([value])


def test_a_view_has_the_storage_of_its_base_and_a_copy_has_its_own() -> None:
    for base in (np.arange(4.0), torch.arange(4.0)):
        copy = base.copy() if isinstance(base, np.ndarray) else base.clone()
        assert leaves([base, base[1:]]) != leaves([base, copy[1:]])


class Shy:
    """Every way of asking it something is a mistake."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = 7

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise AssertionError("asked for its text")


class Odd(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise AssertionError("asked for its length")

    def __iter__(self) -> Any:
        raise AssertionError("iterated")


def test_no_code_of_the_objects_is_run() -> None:
    assert ("x.kept", "int", "7") in leaves(Shy())
    assert ("x[1]", "int", "2") in leaves(Odd([1, 2]))


def test_cycles_end_and_what_cannot_be_looked_into_is_counted() -> None:
    loop: list[Any] = [threading.Lock(), object()]
    loop.append(loop)
    walk = Walk("", lambda cls: False, 0)
    walk.root("x", loop)
    assert ("x[2]", "same", "x") in walk.leaves
    assert walk.opaque == {"_thread.lock": 1, "object": 1}


def test_a_generator_is_read_by_its_names_and_goes_on() -> None:
    def count() -> Any:
        number = 1
        while True:
            number += yield number

    counting = count()
    assert next(counting) == 1
    assert ("x.<number>", "int", "1") in leaves(counting)
    assert counting.send(4) == 5


def test_temporary_folders_and_their_names_are_no_difference() -> None:
    texts = []
    for mask in ("/tmp/one", "/tmp/two"):
        walk = Walk(mask, lambda cls: False, 0)
        walk.root("x", [f"{mask}/file", Path(mask) / "file"])
        texts.append(walk.leaves)
    assert texts[0] == texts[1]


def test_the_engine_needs_neither_numpy_nor_torch_to_look() -> None:
    code = (
        "import sys\nfrom harness.mutation.diagnosis import probe, recorder, explain\n"
        "from harness.mutation.diagnosis.walk import Walk\nw = Walk('', lambda c: False, 0)\n"
        "w.root('x', [1.5, {'a': (2, 's')}, sys])\nassert len(w.leaves) == 7, w.leaves\n"
        "print(sorted({'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("array", "number", "shown"),
    [
        (np.array([1.5, 2.5]), 1, "2.5"),
        (np.array([1, -2], dtype=np.int16), 1, "-2"),
        (np.array([True, False]), 1, "False"),
        (np.array([1 + 2j]), 0, "(1+2j)"),
        (torch.tensor([1.5, -3.0], dtype=torch.bfloat16), 1, "-3"),
        (torch.tensor([0.5], dtype=torch.float16), 0, "0.5"),
    ],
)
def test_elements_are_read_from_their_bytes(array: Any, number: int, shown: str) -> None:
    found = arrays.leaf(array, arrays.RAW_MAX, {})
    assert found is not None
    assert elements.array(found[1]).shown(number) == shown


def test_the_elements_that_differ_are_found_in_arrays_of_two_shapes() -> None:
    one = elements.array(f"float64|2x2|-|a|{struct.pack('4d', 1, 2, 3, 4).hex()}")
    other = elements.array(f"float64|2x3|-|b|{struct.pack('6d', 1, 2, 0, 9, 4, 0).hex()}")
    assert elements.differing(one, other) == [2]
    assert elements.differing(other, one) == [2, 3, 5]


def varied(style: str | None, value: Any, **flags: bool) -> tuple[Any, Vary]:
    vary = Vary(style, flags.get("scalars", False), flags.get("rows", False), lambda cls: cls is Shy)
    names = {"x": value}
    vary.arguments(names, ["x"])
    return names["x"], vary


def test_a_ramp_is_written_into_the_array_that_was_given_and_all_of_its_values_differ() -> None:
    for array in (np.zeros((3, 2)), torch.zeros(3, 2, dtype=torch.float64)):
        found, vary = varied("wide", array)
        assert found is array and len({float(v) for v in array.reshape(-1)}) == 6
        assert vary.noted == ["x on a ramp"]
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    assert (varied("wide", fixed)[0] != 0).all() and (fixed == 0).all()


def test_rows_part_only_when_asked_and_objects_of_the_project_are_reversed() -> None:
    assert varied("unit", [4, 4, 4], rows=True)[0] == [4, 2, 4]
    assert varied("unit", [4, 4, 4])[0] == [4, 4, 4]
    first, second = Shy(), Shy()
    found, _ = varied("unit", [first, second], rows=True)
    assert found[0] is second and found[1] is first
    assert varied(None, [4, 4], rows=True)[1].met == {"arrays": 0, "scalars": 0, "rows": 1}


def test_what_the_project_returned_is_never_varied() -> None:
    vary = Vary("wide", True, True, lambda cls: False)
    made = torch.ones(4)
    vary.leave_alone((made, [1.0, 2.0]))
    names = {"x": made, "y": made[:2]}
    vary.arguments(names, ["x", "y"])
    assert torch.equal(made, torch.ones(4))


def test_the_hooked_text_still_does_what_the_text_does() -> None:
    text = (
        "def f(x):\n    '''doc'''\n    if x > 1:\n        return x, 2\n    if x < 0:\n        raise ValueError(x)\n\n\n"
        "def g(n):\n    for i in range(n):\n        got = yield i\n    return got\n\n\n"
        "class A:\n    @property\n    def p(self):\n        return super().__init__() or 3\n\n\nh = lambda x: x + 1\n"
    )
    for name, raising in (("f", True), ("f", False), ("g", True), ("A.p", False), ("<lambda>", False)):
        hooked = wrapped.wrapped(text, name, raising)
        assert hooked is not None
        calls: list[Any] = []

        def swallow(error: BaseException) -> None:
            raise error

        names: dict[str, Any] = {
            wrapped.LEAVE: lambda value=None, calls=calls: calls.append(value) or value,
            wrapped.SWALLOW: swallow,
        }
        exec(hooked, names)
        assert (names["f"](2), names["f"](0), list(names["g"](2))) == ((2, 2), None, [0, 1])
        assert (names["A"]().p, names["h"](1)) == (3, 2)
        with pytest.raises(ValueError, match="-1"):
            names["f"](-1)
        assert calls, name
    assert wrapped.wrapped(text, "nobody", False) is None


def test_the_hooked_text_moves_no_other_line_so_that_it_can_be_swapped_in() -> None:
    text = (
        "class A:\n    def f(\n        self,\n        x: 'int | None' = None,\n    ) -> int:\n"
        "        # why\n        return (\n            1\n        )\n\n    @property\n    def g(self):\n"
        "        @staticmethod\n        def h():\n            return 2\n        return h()\n\n"
        "    k = [\n        1,\n    ]\n"
    )
    for name, raising in (("A.f", True), ("A.g", False), ("A.g.<locals>.h", False)):
        hooked = wrapped.wrapped(text, name, raising)
        assert hooked is not None and hooked.endswith(text[text.index("\n\n    k") :])
        plan = make_plan(compile_source(text, "a.py"), compile_source(hooked, "a.py"))
        assert plan.pairs and plan.why_reimport is None, name


def test_a_long_ramp_is_the_short_one_made_by_the_library_and_is_not_shared_with_what_is_filled() -> None:
    vary = Vary("wide", False, False, lambda cls: False)
    for kind in (np, torch):
        names = {"x": kind.zeros(1 << 17, dtype=kind.float64), "y": kind.zeros(1 << 17, dtype=kind.float64)}
        vary.arguments(names, ["x", "y"])
        expected = [vary._scaled((n + 0.5) / (1 << 17)) for n in (0, 77, (1 << 17) - 1)]
        assert [float(names["x"][n]) for n in (0, 77, -1)] == pytest.approx(expected, rel=1e-12)
        names["x"][0] = 9.0
        assert float(names["y"][0]) == pytest.approx(expected[0])


def test_arrays_of_objects_and_sparse_tensors_are_looked_into() -> None:
    one, other = np.array([[1, "a"]], dtype=object), np.array([[1, "b"]], dtype=object)
    assert set(leaves(other)) - set(leaves(one)) == {("x[0, 1]", "str", "'b'")}
    plain = torch.eye(2).to_sparse()
    assert leaves(plain) != leaves(plain * 2) and leaves(plain) == leaves(plain * 1)


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1), np.int64(3), np.uint8(3), np.bool_(True), np.datetime64("2020-01-01"), np.complex64(1),
        Decimal("1.5"), Fraction(1, 2), date(2020, 1, 1), timedelta(1), 2, 2.5, "a", b"a", (1,), True,
    ],
    ids=repr,
)  # fmt: skip
def test_a_grossly_wrong_value_has_the_type_of_the_right_one(value: Any) -> None:
    for manner in ("nan", "up", "down"):
        found = wrong(value, {}, manner)
        assert type(found) is type(value) and found != value, manner


def test_equal_digits_are_told_apart_by_more_of_them_and_shared_objects_by_their_name() -> None:
    texts = []
    for number in (0.6, 0.6 - 1e-13):
        found = arrays.leaf(np.array([number, 1.0]), arrays.RAW_MAX, {})
        assert found is not None
        texts.append(["result", *found])
    difference = compare.first_difference(recording([], texts[:1]), recording([], texts[1:]), compare.Noise())
    assert difference is not None
    _, before, after = compare.told(difference.changes[0])
    assert before != after and before.startswith("0.59999") and after.startswith("0.59999")
    assert compare.shown("same", "result") == "the same object as result"


POISONED = """
import calc
def test_closure():
    step = calc.counter()
    step()
    assert step() >= 2
def test_shared():
    kept = [1]
    assert calc.grown(kept) == [1, 2]
"""
CALC = """
def counter():
    n = 0
    def step():
        nonlocal n
        n += 1
        return n
    return step
def grown(values):
    values += [2]
    return values
"""


def test_names_of_a_closure_are_poisoned_and_what_is_shared_is_not(tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_text(CALC)
    (tmp_path / "test_calc.py").write_text(POISONED)
    rows = [
        (Edit("calc.py", "counter.<locals>.step", "n += 1", "n += 2"), "test_calc.py::test_closure"),
        (Edit("calc.py", "grown", "values += [2]", "values = [*values, 2]"), "test_calc.py::test_shared"),
    ]
    with Servers(tmp_path, load_settings(tmp_path), 1, ["calc.py"]) as servers:
        campaign = Campaign(tmp_path, servers.settings, servers, 1)
        tests = [test for _, test in rows]
        servers.preload(servers.list_tests(tests, tests[:1]))
        servers.fork(tests, ["calc.py"])
        faults = [make_fault(sources(tmp_path, [edit])) for edit, _ in rows]
        found = [
            Probe(campaign, fault, test, campaign.mode(fault)[0]).find()
            for fault, test in zip(faults, tests, strict=True)
        ]
    assert [each.cls for each in found] == ["weak-assertion", "unread"], found


def recording(*leaves_of_events: list[list[str]], seen: list[list[Any]] | None = None) -> dict[str, Any]:
    borders = [["enter" if n % 2 == 0 else "exit", "f#0", n] for n in range(len(leaves_of_events))]
    return {"borders": borders, "seen": seen or [], "leaves": list(leaves_of_events)}


def test_what_differs_by_itself_is_not_put_down_to_the_mutant() -> None:
    entry = [["x", "int", "1"]]
    one = recording(entry, [["result.at", "int", "10"], ["result.value", "int", "1"]])
    again = recording(entry, [["result.at", "int", "11"], ["result.value", "int", "1"]])
    clock_only = recording(entry, [["result.at", "int", "12"], ["result.value", "int", "1"]])
    both = recording(entry, [["result.at", "int", "13"], ["result.value", "int", "2"]])
    quiet = compare.noise(one, again)
    assert compare.first_difference(one, clock_only, quiet) is None
    found = compare.first_difference(one, both, quiet)
    assert found is not None
    assert [change.path for change in found.changes] == ["result.value"]
    assert found.spot == "f (call 1)"


def test_a_list_of_which_one_element_is_chance_is_chance_as_a_whole() -> None:
    def run(first: str, second: str) -> dict[str, Any]:
        outcome = [["result", "list", "of 2"], ["result[0]", "int", first], ["result[1]", "int", second]]
        return recording([["x", "int", "1"]], outcome)

    quiet = compare.noise(run("5", "8"), run("6", "8"))
    assert compare.first_difference(run("5", "8"), run("7", "9"), quiet) is None


def test_every_class_has_a_meaning_and_one_sentence_of_advice() -> None:
    for cls in classes.Class:
        assert cls.meaning
        assert cls.advice.endswith(".") and ". " not in cls.advice
