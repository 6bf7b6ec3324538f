"""Where the words of native calls stand: what `signatures.py` writes and its LLVM text reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

MOST_LEAVES: Final = 512
"""A call has at most so many arrays: what is known of them is on the stack, and some are small."""

MOST_KEY_WORDS: Final = 2560
"""And so many words that tell signatures apart."""

MOST_WORDS: Final = 1152
"""A program that is called natively has at most so many words."""

MOST_STEP_WORDS: Final = 64
"""And so many, if it is one of several that are run one after the other."""

MOST_OUTPUTS: Final = 512
"""And so many results."""

MOST_REFS: Final = 16
"""A call has at most so many refs."""

MOST_CONTENTS: Final = 512
"""Which hold at most so many arrays."""

LEAF, SKIP, NONE, TUPLE, LIST, DICT, FIELDS, SAME, EQUAL = range(9)
"""The ops of a structure; the words behind each are told by `structure.py`."""

TABLE: Final = ("calls", "structures", "first")
"""The first words of a table; the addresses of its structures start at the last one."""

STRUCTURE: Final = (
    "positional", "named", "lines", "entries", "mask", "starter", "tree", "flatten", "sized",
    "most_copied",
)  # fmt: skip
"""The first words of a structure, before its ops. Arrays in another order than row-major are
copied up to `most_copied` elements; larger ones are left to Python."""

SIZED: Final = ("length", "like", "mask", "code", "steps", "frame", "frame_size")
"""The words of a plan for many sizes, as `sizes.py` tells."""

SIZE_OPS: Final = (
    "const", "key", "add", "mul", "floordiv", "mod", "min", "max", "zero", "least", "other", "put",
    "relocate", "sized", "copy",
)  # fmt: skip
"""The ops of its code. `const` value, `key` place, `put` value at word, `relocate` word to address
of word, `sized` word from the record at word, `copy` to word from word; the others are of one or
two values."""

MOST_FRAME: Final = 1024
"""Its frame has at most so many words."""

MOST_STEPS: Final = 1024
"""And its code so many instructions."""

MOST_SIZED: Final = 64
"""A structure has at most so many of them."""

ENTRY: Final = ("hash", "plan", "words")
"""The words of a place in a structure's hash table."""

PLAN: Final = (
    "length", "key", "main", "captured", "captured_at", "outputs", "outputs_at", "scratch",
    "scratch_size", "tail", "tail_at", "release", "tree", "converted_at",
    "template", "keys", "holds", "results", "refs", "refs_at",
    "donated", "donated_at", "mark", "returned", "returned_at",
)  # fmt: skip
"""The first words of a plan."""

A_LEAF, A_TUPLE, NOTHING = range(3)
"""`tree` of a plan, where it is not what makes the result of a tuple: the only array, the tuple
itself (or a dict), None."""

OUTPUT: Final = (
    "dtype", "rank", "dims", "nbytes", "type", "large", "itemsize", "on",
    "view", "offset", "strides",
)  # fmt: skip
"""The words of each output. `on` is 0, or 1 and the position, among the leaves and then the arrays
that refs hold, of the one whose memory it takes. `view` is 0, or 1 and the position of the leaf
that it is a view of, which starts at an offset in bytes."""

REF: Final = ("cell", "param", "count", "written", "user")
"""The words of each ref of a plan: its address, or 0 and its position among the refs in the
arguments; how many arrays it holds; whether they are replaced; what stands in it meanwhile as its
user."""

MULTIPLIER: Final = 0x9E3779B97F4A7C15

AS_IT_IS, TO_FLOAT32, TO_INT32, INT_TO_FLOAT32, INT_TO_FLOAT64 = range(5)
"""What is done with a number before the program reads it."""

# The words of `%call`.
CURSOR, LEAVES, LENGTH, REMOTES, LINES, FIRST, REFS, MOST_COPIED = range(8)
KEPT: Final = 8
ADDRESSES: Final = KEPT + MOST_LEAVES
NUMBERS: Final = ADDRESSES + MOST_LEAVES
KEY: Final = NUMBERS + MOST_LEAVES
REFS_AT: Final = KEY + MOST_KEY_WORDS
OBJECTS: Final = REFS_AT + MOST_REFS
CALL_WORDS: Final = OBJECTS + MOST_LEAVES

# NumPy's array, whose layout compiled extensions rely on.
DATA, RANK, DIMS, STRIDES, BASE, DTYPE, FLAGS, HANDLER = 16, 24, 32, 40, 48, 56, 64, 88
C_CONTIGUOUS, OWNS, ALIGNED, WRITEABLE = 0x1, 0x4, 0x100, 0x400
READY: Final = C_CONTIGUOUS | ALIGNED

COUNT, TYPE, SIZE, TUPLE_ITEMS, LIST_ITEMS, FLOAT_VALUE = 0, 8, 16, 24, 24, 16

Offsets: TypeAlias = Mapping[str, Mapping[str, int]]
"""Of the slots of classes, by their names."""
