"""Trees: leaves, paths, structures that differ, and classes of the user."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest

from tessera import pytree
from tessera.errors import PytreeError


class Pair(NamedTuple):
    x: object
    y: object


@pytree.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    w: Any
    b: Any
    act: str = dataclasses.field(default="relu", metadata={"static": True})

    def __post_init__(self) -> None:
        assert self.act, "rebuilding an instance does not check it"


TREES: list[tuple[object, list[object]]] = [
    (1, [1]),
    (None, []),
    ((), []),
    ([1, (2, None), {"b": 3, "a": 4}], [1, 2, 4, 3]),
    (OrderedDict([("b", 1), ("a", 2)]), [1, 2]),
    (Pair(1, [2, 3]), [1, 2, 3]),
    (Layer(1, {"z": 2}), [1, 2]),
    ({2: "x", 1: "y"}, ["y", "x"]),
]


@pytest.mark.parametrize(("tree", "expected"), TREES)
def test_round_trip(tree: object, expected: list[object]) -> None:
    leaves, treedef = pytree.flatten(tree)
    assert leaves == expected == pytree.leaves(tree)
    assert treedef == pytree.structure(tree)
    assert pytree.unflatten(treedef, leaves) == tree
    assert hash(treedef) == hash(pytree.structure(tree))


def test_makers_of_named_tuples() -> None:
    class Sub(Pair):
        pass

    class Told(Pair):
        def __new__(cls, x: object, y: object) -> Told:
            raise AssertionError

    class Begun(Pair):
        def __init__(self, *args: object) -> None:
            raise AssertionError

    for cls in (Pair, Sub):
        make = pytree.maker_of(cls)
        assert make is not None
        found = make((1, 2))
        assert type(found) is cls
        assert found == cls(1, 2)
    assert [pytree.maker_of(cls) for cls in (Told, Begun, tuple, list)] == [None] * 4


def test_is_leaf() -> None:
    leaves, treedef = pytree.flatten([(1, 2), 3], is_leaf=lambda x: isinstance(x, tuple))
    assert leaves == [(1, 2), 3]
    assert pytree.unflatten(treedef, "ab") == ["a", "b"]


def test_unflatten_counts() -> None:
    with pytest.raises(PytreeError, match="got 1 leaves for a structure with 2") as caught:
        pytree.unflatten(pytree.structure({"a": 1, "b": 2}), [1])
    assert "structure: {'a': *, 'b': *}" in str(caught.value)


def test_paths() -> None:
    tree = {"w1": [1, Layer(2, 3)], "p": Pair(4, None)}
    paths, leaves, treedef = pytree.flatten_with_paths(tree, "params")
    assert paths == [
        "params['p'].x",
        "params['w1'][0]",
        "params['w1'][1].w",
        "params['w1'][1].b",
    ]
    assert leaves == [4, 1, 2, 3]
    assert pytree.paths(treedef, "params") == paths
    assert pytree.flatten_with_paths(1, "x")[0] == ["x"]


def test_map() -> None:
    assert pytree.map_(lambda x: x + 1, {"a": 1, "b": (2, None)}) == {"a": 2, "b": (3, None)}
    assert pytree.map_(lambda x, y: (x, y), [1, 2], ["a", {"k": 3}]) == [(1, "a"), (2, {"k": 3})]


def test_map_names_the_tree_that_differs() -> None:
    with pytest.raises(PytreeError) as caught:
        pytree.map_(lambda x, y: x, {"a": [1, 2]}, {"a": [1]})
    text = str(caught.value)
    assert text.startswith("map: tree 2 does not have the structure of the first; at tree['a']: ")
    assert "the first has length 2, the other 1" in text


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ({"a": [1, 2]}, {"a": [1]}, "p['a']: the first has length 2, the second 1"),
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, "p: only the first has 'b'"),
        ({"a": 1}, {"a": 1, "c": 2}, "p: only the second has 'c'"),
        ([1, (2,)], [1, [2]], "p[1]: the first has a tuple, the second a list"),
        ([1, None], [1, 2], "p[1]: the first has None, the second a leaf"),
        (Pair(1, (1,)), Pair(1, 1), "p.y: the first has a tuple, the second a leaf"),
        (Layer(1, [2]), Layer(1, 2), "p.b: the first has a list, the second a leaf"),
        (
            [Layer(1, 2, "a")],
            [Layer(1, 2, "b")],
            "p[0]: the field `act` is 'a' in the first, 'b' in the second",
        ),
    ],
)
def test_structures_that_differ(first: object, second: object, place: str) -> None:
    a, b = pytree.structure(first), pytree.structure(second)
    with pytest.raises(PytreeError) as caught:
        pytree.same_structure(a, b, what="scan", root="p")
    text = str(caught.value)
    assert text.splitlines()[0] == (
        f"scan: the first and the second differ in structure; at {place}"
    )
    assert f"the first: {pytree.show(a)}" in text
    assert f"the second: {pytree.show(b)}" in text
    pytree.same_structure(a, a)


def test_structures_are_shown_plainly() -> None:
    assert pytree.show(pytree.structure({"a": [1, None]})) == "{'a': [*, None]}"
    assert "namespace" not in pytree.show(pytree.structure(Layer(1, 2)))


def test_registered_nodes() -> None:
    class Box:
        def __init__(self, value: object, label: str) -> None:
            self.value, self.label = value, label

    returned = pytree.register_pytree_node(
        Box, lambda b: ([b.value], b.label), lambda label, children: Box(children[0], label)
    )
    assert returned is Box
    leaves, treedef = pytree.flatten([Box({"k": 1}, "x")])
    assert leaves == [1]
    rebuilt = pytree.unflatten(treedef, [5])[0]
    assert (rebuilt.value, rebuilt.label) == ({"k": 5}, "x")
    with pytest.raises(PytreeError, match="Box is registered already"):
        pytree.register_pytree_node(Box, lambda b: ((), None), lambda _, c: Box(1, ""))


def test_dataclass_fields_may_be_named() -> None:
    @dataclasses.dataclass
    class Model:
        w: int
        n: int
        made: int = dataclasses.field(init=False, default=0)

    pytree.register_dataclass(Model, meta_fields=["n"])
    assert pytree.flatten_with_paths(Model(1, 2), "m")[:2] == (["m.w", "m.made"], [1, 0])
    copy = pytree.map_(lambda x: x + 1, Model(1, 2))
    assert (copy.w, copy.n, copy.made) == (2, 2, 1)


def test_dataclass_data_fields_alone() -> None:
    @dataclasses.dataclass
    class Model:
        w: int
        n: int

    pytree.register_dataclass(Model, data_fields=["w"])
    assert pytree.leaves(Model(1, 2)) == [1]


def test_dataclass_mistakes() -> None:
    class Plain:
        pass

    with pytest.raises(PytreeError, match="Plain is not a dataclass\n  fix: decorate it"):
        pytree.register_dataclass(Plain)

    @dataclasses.dataclass
    class Model:
        w: int

    with pytest.raises(PytreeError, match=r"the fields of Model are w, but .* meta fields v were"):
        pytree.register_dataclass(Model, meta_fields=["v"])
