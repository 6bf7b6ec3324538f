"""The native side of operators of arrays, as LLVM text: what stands in the slots of their class."""

from __future__ import annotations

from tessera.runtime.dispatch import words as w

NAMES = ("add", "sub", "mul", "truediv")
"""Operators that have a slot each; comparisons share one."""

COMPARE = "compare"


def operators_text() -> str:
    """A function for each slot, which runs what is known, and else what stood there before."""
    binary = [
        _BINARY.format(name=name, place=place, TYPE=w.TYPE) for place, name in enumerate(NAMES)
    ]
    return "".join(binary) + _COMPARE.format(first=len(NAMES)) + _OPERATE


# What CPython has in the slot calls methods of classes only that have that very function there.
_BINARY = """
@tessera_name_{name} = external global i8
@tessera_reflected_{name} = external global i8
define ptr @tessera_{name}(ptr %a, ptr %b) nounwind {{
entry:
  %found = call ptr @operate(i64 {place}, ptr %a, ptr %b)
  %unknown = icmp eq ptr %found, @_Py_NotImplementedStruct
  br i1 %unknown, label %slow, label %done, !prof !0
slow:
  %a.type.at = getelementptr i8, ptr %a, i64 {TYPE}
  %a.type = load ptr, ptr %a.type.at
  %b.type.at = getelementptr i8, ptr %b, i64 {TYPE}
  %b.type = load ptr, ptr %b.type.at
  %a.ours = call i32 @PyType_IsSubtype(ptr %a.type, ptr @tessera_array_class)
  %has.method = icmp ne i32 %a.ours, 0
  br i1 %has.method, label %method, label %reflected
method:
  %result = call ptr (ptr, ptr, ...) @PyObject_CallMethodObjArgs(ptr %a, ptr @tessera_name_{name},
      ptr %b, ptr null)
  %declined = icmp eq ptr %result, @_Py_NotImplementedStruct
  %other.type = icmp ne ptr %a.type, %b.type
  %other.may = and i1 %declined, %other.type
  br i1 %other.may, label %perhaps.other, label %give
perhaps.other:
  %b.ours = call i32 @PyType_IsSubtype(ptr %b.type, ptr @tessera_array_class)
  %has.other = icmp ne i32 %b.ours, 0
  br i1 %has.other, label %drop, label %give
drop:
  call void @Py_DecRef(ptr %result)
  br label %reflected
reflected:
  %other = call ptr (ptr, ptr, ...) @PyObject_CallMethodObjArgs(ptr %b,
      ptr @tessera_reflected_{name}, ptr %a, ptr null)
  ret ptr %other
give:
  ret ptr %result
done:
  ret ptr %found
}}
"""

_COMPARE = """
declare ptr @tessera_slow_compare(ptr, ptr, i32)
define ptr @tessera_compare(ptr %a, ptr %b, i32 %order) nounwind {{
  %number = zext i32 %order to i64
  %place = add i64 %number, {first}
  %found = call ptr @operate(i64 %place, ptr %a, ptr %b)
  %unknown = icmp eq ptr %found, @_Py_NotImplementedStruct
  br i1 %unknown, label %slow, label %done, !prof !0
slow:
  %result = tail call ptr @tessera_slow_compare(ptr %a, ptr %b, i32 %order)
  ret ptr %result
done:
  ret ptr %found
}}
"""

# The result, null with an error set, or a borrowed NotImplemented where nothing was done.
_OPERATE = """
@tessera_operators = external global i64
define internal ptr @operate(i64 %place, ptr %a, ptr %b) nounwind {
entry:
  %items = alloca [2 x ptr], align 16
  %table.at = getelementptr i64, ptr @tessera_operators, i64 %place
  %table = load ptr, ptr %table.at
  %missing = icmp eq ptr %table, null
  br i1 %missing, label %unknown, label %known
known:
  store ptr %a, ptr %items
  %second = getelementptr ptr, ptr %items, i64 1
  store ptr %b, ptr %second
  %found = call ptr @dispatch(ptr %table, ptr %items, i64 2, ptr null, ptr null)
  ret ptr %found
unknown:
  ret ptr @_Py_NotImplementedStruct
}
"""
