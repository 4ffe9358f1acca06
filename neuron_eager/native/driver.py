"""The function that runs a kernel: one for all kernels, driven by a table of calls.

    void ne_run(void** pointers, int64 table, int64 unused)

Words (int64) of a table:
    header   entries, work, scratch bytes of a thread, arena bytes, flags, constants address
    entry    function, first, last, work of one, flags, leaves, then (base, offset) for each leaf
A leaf becomes one argument: base >= 0 is pointers[base] + offset, and the bases below are numbers, the arena (memory of
this call) and the constants of the program. The range of an entry is shared by the threads, or where a table has many
independent entries, the entries are (flag SPREAD). An entry with flag WAIT starts when all threads have done what is
above it.
"""

from __future__ import annotations

from typing import Any

from .target import Target

NUMBER, ARENA, CONSTANTS = -1, -2, -3
SPREAD, WAIT = 1, 1
HEADER, ENTRY = 6, 6
MAX_LEAVES = 256
SMALL = 1 << 13  # memory taken from the stack
GRAIN = 32768


def module(target: Target) -> Any:
    """IR of the driver."""
    return f"""
target triple = "{target.triple}"
target datalayout = "{target.data_layout}"
declare i64 @ne_parts(i64, i64)
declare void @ne_parallel(ptr, ptr, i64)
declare void @GOMP_barrier()
declare ptr @malloc(i64)
declare void @free(ptr)
declare void @llvm.trap()
%job = type {{ ptr, ptr, ptr, ptr }}

define void @ne_run(ptr %pointers, i64 %address, i64 %unused) nounwind {{
entry:
  %small = alloca [{SMALL + 64} x i8], align 64
  %job = alloca %job
  %table = inttoptr i64 %address to ptr
  %p.work = getelementptr i64, ptr %table, i64 1
  %work = load i64, ptr %p.work
  %p.scratch = getelementptr i64, ptr %table, i64 2
  %scratch = load i64, ptr %p.scratch
  %p.arena = getelementptr i64, ptr %table, i64 3
  %arena = load i64, ptr %p.arena
  %large = icmp sge i64 %work, {2 * GRAIN}
  br i1 %large, label %ask, label %sized
ask:
  %asked = call i64 @ne_parts(i64 %work, i64 1024)
  br label %sized
sized:
  %parts = phi i64 [ 1, %entry ], [ %asked, %ask ]
  %own = mul i64 %scratch, %parts
  %need = add i64 %own, %arena
  %fits = icmp sle i64 %need, {SMALL}
  br i1 %fits, label %ready, label %allocate
allocate:
  %more = add i64 %need, 64
  %block = call ptr @malloc(i64 %more)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %trap, label %align
trap:
  call void @llvm.trap()
  unreachable
align:
  %raw = ptrtoint ptr %block to i64
  %up = add i64 %raw, 63
  %even = and i64 %up, -64
  %aligned = inttoptr i64 %even to ptr
  br label %ready
ready:
  %memory = phi ptr [ %small, %sized ], [ %aligned, %align ]
  %keep = phi ptr [ null, %sized ], [ %block, %align ]
  %area = getelementptr i8, ptr %memory, i64 %own
  %j0 = insertvalue %job undef, ptr %pointers, 0
  %j1 = insertvalue %job %j0, ptr %table, 1
  %j2 = insertvalue %job %j1, ptr %memory, 2
  %j3 = insertvalue %job %j2, ptr %area, 3
  store %job %j3, ptr %job
  %single = icmp slt i64 %parts, 2
  br i1 %single, label %alone, label %together
alone:
  call void @run(ptr %job, i64 0, i64 1)
  br label %done
together:
  call void @ne_parallel(ptr @run, ptr %job, i64 %parts)
  br label %done
done:
  %taken = icmp ne ptr %keep, null
  br i1 %taken, label %release, label %exit
release:
  call void @free(ptr %keep)
  br label %exit
exit:
  ret void
}}

define internal void @run(ptr %data, i64 %part, i64 %parts) nounwind {{
entry:
  %leaves = alloca [{MAX_LEAVES} x i64], align 64
  %job = load %job, ptr %data
  %pointers = extractvalue %job %job, 0
  %table = extractvalue %job %job, 1
  %memory = extractvalue %job %job, 2
  %arena.p = extractvalue %job %job, 3
  %arena = ptrtoint ptr %arena.p to i64
  %n = load i64, ptr %table
  %p.scratch = getelementptr i64, ptr %table, i64 2
  %size = load i64, ptr %p.scratch
  %p.flags = getelementptr i64, ptr %table, i64 4
  %flags = load i64, ptr %p.flags
  %p.constants = getelementptr i64, ptr %table, i64 5
  %constants = load i64, ptr %p.constants
  %shift = mul i64 %size, %part
  %scratch = getelementptr i8, ptr %memory, i64 %shift
  %several = icmp sgt i64 %parts, 1
  %spread.bit = and i64 %flags, {SPREAD}
  %spread.on = icmp ne i64 %spread.bit, 0
  %spread = and i1 %spread.on, %several
  %first.entry = getelementptr i64, ptr %table, i64 {HEADER}
  %empty = icmp slt i64 %n, 1
  br i1 %empty, label %exit, label %next
next:
  %e = phi i64 [ 0, %entry ], [ %e.next, %after ]
  %p = phi ptr [ %first.entry, %entry ], [ %p.next, %after ]
  %function = load ptr, ptr %p
  %p1 = getelementptr i64, ptr %p, i64 1
  %first = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %p, i64 2
  %last = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %p, i64 3
  %each = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %p, i64 4
  %entry.flags = load i64, ptr %p4
  %p5 = getelementptr i64, ptr %p, i64 5
  %count = load i64, ptr %p5
  %args = getelementptr i64, ptr %p, i64 {ENTRY}
  %words = mul i64 %count, 2
  %p.next = getelementptr i64, ptr %args, i64 %words
  br i1 %several, label %shared, label %whole
whole:
  br label %range
shared:
  %wait = and i64 %entry.flags, {WAIT}
  %waits = icmp ne i64 %wait, 0
  br i1 %waits, label %barrier, label %divide
barrier:
  call void @GOMP_barrier()
  br label %divide
divide:
  br i1 %spread, label %mine, label %rows
mine:
  %scaled = mul i64 %e, %parts
  %whose = udiv i64 %scaled, %n
  %is.mine = icmp eq i64 %whose, %part
  br i1 %is.mine, label %range, label %after
rows:
  %length = sub i64 %last, %first
  %amount = mul i64 %length, %each
  %tiny = icmp slt i64 %amount, {GRAIN // 2}
  br i1 %tiny, label %leader, label %cut
leader:
  %zeroth = icmp eq i64 %part, 0
  br i1 %zeroth, label %range, label %after
cut:
  %low.s = mul i64 %length, %part
  %low.o = udiv i64 %low.s, %parts
  %low = add i64 %first, %low.o
  %high.s = add i64 %low.s, %length
  %high.o = udiv i64 %high.s, %parts
  %high = add i64 %first, %high.o
  br label %range
range:
  %r0 = phi i64 [ %first, %whole ], [ %first, %mine ], [ %first, %leader ], [ %low, %cut ]
  %r1 = phi i64 [ %last, %whole ], [ %last, %mine ], [ %last, %leader ], [ %high, %cut ]
  %none = icmp slt i64 %count, 1
  br i1 %none, label %call, label %leaf
leaf:
  %k = phi i64 [ 0, %range ], [ %k.next, %put ]
  %twice = mul i64 %k, 2
  %p.base = getelementptr i64, ptr %args, i64 %twice
  %base = load i64, ptr %p.base
  %p.offset = getelementptr i64, ptr %p.base, i64 1
  %offset = load i64, ptr %p.offset
  %outer = icmp sge i64 %base, 0
  br i1 %outer, label %pointer, label %special
pointer:
  %p.ptr = getelementptr i64, ptr %pointers, i64 %base
  %ptr = load i64, ptr %p.ptr
  br label %put
special:
  %is.number = icmp eq i64 %base, {NUMBER}
  %is.arena = icmp eq i64 %base, {ARENA}
  %other = select i1 %is.arena, i64 %arena, i64 %constants
  %start = select i1 %is.number, i64 0, i64 %other
  br label %put
put:
  %from = phi i64 [ %ptr, %pointer ], [ %start, %special ]
  %value = add i64 %from, %offset
  %p.leaf = getelementptr i64, ptr %leaves, i64 %k
  store i64 %value, ptr %p.leaf
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %count
  br i1 %more, label %leaf, label %call
call:
  call void %function(i64 %r0, i64 %r1, ptr %scratch, ptr %leaves)
  br label %after
after:
  %e.next = add i64 %e, 1
  %go = icmp slt i64 %e.next, %n
  br i1 %go, label %next, label %exit
exit:
  ret void
}}
"""


def address(target: Target) -> int:
    """Address of ne_run, compiled or taken from the store on first use."""
    from . import objects

    return objects.obtain("driver", "driver", lambda: module(target), target).symbols["ne_run"]
