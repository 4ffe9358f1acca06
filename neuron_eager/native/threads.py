"""Threads for large work: torch's own OpenMP pool, entered from generated code.

Kernels share the pool with torch (GOMP_parallel of the libgomp in torch's wheel), so nothing is oversubscribed. How
many threads to take is asked natively, once per large call, from at::get_num_threads, which is
torch.get_num_threads(). OpenMP's own omp_get_max_threads differs in a Python thread that has not run torch code yet:
torch.set_num_threads of another thread has not arrived there. One thread is taken for small work, inside a parallel
section, and in a forked child, where entering a pool that the parent used would hang.
Where torch brings no libgomp, everything runs on one thread.
"""
from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from .target import Target

GRAIN = 32768               # element operations worth a thread: about 10 us of vector code
WORDS: dict[str, Any] = {   # read by generated code, written by Python; never freed
    "ne_forked": ctypes.c_int32(0),
    "ne_limit": ctypes.c_int32(2**31 - 1),
}


def _after_fork() -> None:
    WORDS["ne_forked"].value = 1


os.register_at_fork(after_in_child=_after_fork)


def set_limit(count: int | None) -> None:
    """Take at most this many threads, on top of torch's own setting; None: no limit of ours."""
    WORDS["ne_limit"].value = count if count is not None else 2**31 - 1


@functools.cache
def openmp() -> ctypes.CDLL | None:
    """The OpenMP runtime in torch's wheel; None if it has no libgomp."""
    spec = importlib.util.find_spec("torch")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(place, "lib").glob("libgomp*.so*")):
            return ctypes.CDLL(str(path))
    return None


def pool_size() -> Any:
    """The C function int() that says how many threads torch would use, or OpenMP without torch; None without either."""
    openmp_library = openmp()
    torch = sys.modules.get("torch")
    if openmp_library is None or torch is None:
        return openmp_library and openmp_library.omp_get_max_threads
    try:
        return ctypes.CDLL(str(Path(torch.__file__ or "").parent / "lib" / "libtorch_cpu.so"))._ZN2at15get_num_threadsEv
    except (OSError, AttributeError):
        return openmp_library.omp_get_max_threads


def max_threads() -> int:
    """Threads that large work of the calling thread would take."""
    size = pool_size()
    if size is None or WORDS["ne_forked"].value:
        return 1
    return max(1, min(size(), WORDS["ne_limit"].value))


def emit_parts(build: Any, work: Any, limit: Any) -> Any:
    """i64: how many threads to use for `work` element operations that can be cut into at most `limit` pieces."""
    from .irtypes import I64
    return build.call("ne_parts", build.i64(work), build.i64(limit), result=I64)


def emit_parallel(build: Any, body: Any, data: Any, parts: Any) -> None:
    """Run body(data, part, parts) on `parts` threads: a function void(ptr, i64, i64). At one part it is a plain call.

    The pool may give fewer threads than asked for; body's own `parts` is what counts.
    """
    build.call("ne_parallel", body, data, build.i64(parts))


def emit_share(build: Any, rows: Any, part: Any, parts: Any) -> tuple[Any, Any]:
    """The rows r0 .. r1 of one part."""
    b, rows = build.b, build.i64(rows)
    low = b.mul(rows, part)
    return b.udiv(low, parts), b.udiv(b.add(low, rows), parts)


def module_text(target: Target) -> str:
    """IR of ne_parts, ne_parallel and ne_one (the stand-in for an OpenMP that is not there)."""
    return f"""
target triple = "{target.triple}"
@ne_forked = external global i32
@ne_limit = external global i32
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare i32 @ne_pool_size()
declare i32 @omp_in_parallel()
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define i32 @ne_one() nounwind {{
  ret i32 1
}}

define i64 @ne_parts(i64 %work, i64 %limit) nounwind {{
entry:
  %pieces = sdiv i64 %work, {GRAIN}
  %few = call i64 @llvm.smin.i64(i64 %pieces, i64 %limit)
  %small = icmp slt i64 %few, 2
  br i1 %small, label %one, label %large
large:
  %forked = load i32, ptr @ne_forked
  %child = icmp ne i32 %forked, 0
  br i1 %child, label %one, label %parent
parent:
  %nested = call i32 @omp_in_parallel()
  %inside = icmp ne i32 %nested, 0
  br i1 %inside, label %one, label %outside
outside:
  %pool = call i32 @ne_pool_size()
  %wide = sext i32 %pool to i64
  %ours = load i32, ptr @ne_limit
  %own = sext i32 %ours to i64
  %a = call i64 @llvm.smin.i64(i64 %few, i64 %wide)
  %b = call i64 @llvm.smin.i64(i64 %a, i64 %own)
  %c = call i64 @llvm.smax.i64(i64 %b, i64 1)
  ret i64 %c
one:
  ret i64 1
}}

%job = type {{ ptr, ptr }}
define internal void @section(ptr %job) nounwind {{
  %body = load ptr, ptr %job
  %slot = getelementptr %job, ptr %job, i32 0, i32 1
  %data = load ptr, ptr %slot
  %t = call i32 @omp_get_thread_num()
  %n = call i32 @omp_get_num_threads()
  %part = zext i32 %t to i64
  %parts = zext i32 %n to i64
  call void %body(ptr %data, i64 %part, i64 %parts)
  ret void
}}

define void @ne_parallel(ptr %body, ptr %data, i64 %parts) nounwind {{
entry:
  %single = icmp slt i64 %parts, 2
  br i1 %single, label %here, label %pool
here:
  call void %body(ptr %data, i64 0, i64 1)
  ret void
pool:
  %job = alloca %job
  store ptr %body, ptr %job
  %slot = getelementptr %job, ptr %job, i32 0, i32 1
  store ptr %data, ptr %slot
  %n = trunc i64 %parts to i32
  call void @GOMP_parallel(ptr @section, ptr %job, i32 %n, i32 0)
  ret void
}}
"""
