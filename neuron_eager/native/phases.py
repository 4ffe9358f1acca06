"""The order of work inside one row: which loops over the columns it takes, and what is kept between them.

A reduction is known only after its loop, so its users run in a later one. Values that several loops need are
recomputed if they are cheap and kept in a row buffer if they are not. This is pure analysis: no code is made here.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from .groups import COST
from .lift import Store
from .patterns import Pattern, normal, refine
from .values import Bail, V, nodes

KEEP = 8  # element operations from which a value used by two loops is kept
COLUMNS_AT = {"load": 3, "gather": 4, "affine": 2, "pick": 1}  # where a node keeps its column pattern
SEQUENTIAL = frozenset({"scan", "row", "max8", "find8", "replace8"})  # see `streams`


def is_scalar(v: V) -> bool:
    """One column, or the same in all."""
    return v.F is None or v.F == 1


def is_loop(v: V) -> bool:
    """Whether a node needs a loop of its own to end before it is known."""
    return (v.op == "red" and (v.at[1] > 1 or v.F != 1)) or v.op in SEQUENTIAL


def streamed(v: V) -> tuple[V, ...]:
    """The arguments of a sequential node that its loop runs over."""
    return v.args[:2] if v.op == "scan" else v.args[:1]


@dataclass
class Job:
    """One loop nest over `width` columns: reductions to `F` values each, scans (F is -1), stores. counts: its loops,
    outermost first."""

    phase: int
    width: int
    F: int
    reds: list[V] = field(default_factory=list)
    keep: list[V] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    sequential: list[V] = field(default_factory=list)

    counts: tuple[int, ...] = ()

    def roots(self) -> list[V]:
        """What the loop computes."""
        return (
            [v.args[0] for v in self.reds]
            + self.keep
            + [st.v for st in self.stores]
            + [a for v in self.sequential for a in streamed(v)]
        )


@dataclass
class Plan:
    """Jobs in order. kept: values in a row buffer, with the number of the job that makes them."""

    jobs: list[Job]
    kept: dict[int, int]
    scalars: list[Store]


def plan(sinks: list[Store], have: Container[int]) -> Plan:
    """The jobs of a row; `have` are values that lie in memory already. Raises Bail if an in-place store would come
    too early."""
    order = nodes([st.v for st in sinks], have)
    phase: dict[int, int] = {}
    for v in order:
        phase[v.id] = 0 if v.id in have else max((phase[a.id] + is_loop(a) for a in v.args), default=0)
    jobs: dict[tuple[int, int, int], Job] = {}

    def job(p: int, width: int, F: int = 1) -> Job:
        return jobs.setdefault((p, width, F), Job(p, width, F))

    for v in order:
        if v.id in have or not is_loop(v):
            continue
        if v.op == "red":
            assert v.F is not None
            job(phase[v.id], v.at[1] * v.F, v.F).reds.append(v)
        else:
            columns = v.args[0].F if v.op in ("max8", "find8") else v.F
            assert columns is not None
            job(phase[v.id], columns, -1).sequential.append(v)
    for st in sinks:
        if st.F > 1:
            job(phase[st.v.id] + is_loop(st.v), st.F).stores.append(st)
    ordered = [jobs[k] for k in sorted(jobs)]
    known = {v.id for v in order if v.id in have}
    for j in ordered:
        j.counts = loop_counts(j, known)
        known |= {v.id for v in [*j.sequential, *j.reds]}
    kept = _keep(ordered, order, have)
    scalars = [st for st in sinks if st.F == 1]
    _check_in_place(ordered, scalars, have)
    return Plan(ordered, kept, scalars)


def loop_counts(job: Job, known: Container[int]) -> tuple[int, ...]:
    """Loop counts over which every access of the job is affine. Raises Bail if there are none."""
    patterns: list[Pattern] = [normal(((1, job.width),)), *[st.cols for st in job.stores]]
    if job.F > 1:
        inner = job.width // job.F
        patterns.append(((inner * 2, job.F), (1, inner)))
    for v in nodes(job.roots(), known, is_scalar):
        if job.width == v.F and v.id not in known and v.op in COLUMNS_AT:
            patterns.append(v.at[COLUMNS_AT[v.op]])
    counts = refine(patterns, job.width)
    if counts is None:
        raise Bail("access patterns of one instruction cross")
    return counts


def _keep(jobs: list[Job], order: list[V], have: Container[int]) -> dict[int, int]:
    """Values that go to a row buffer: results of whole loops, and dear values needed by more than one loop."""
    cost: dict[int, int] = {}
    for v in order:
        cheap = v.F in (None, 1) or v.id in have or v.op in ("load", "gather") or is_loop(v)
        cost[v.id] = 0 if cheap else COST.get(v.op, 1) + sum(cost[a.id] for a in v.args)
    first: dict[int, int] = {}
    kept: dict[int, int] = {}

    def walk(v: V, k: int, seen: set[int]) -> None:
        if v.id in seen or v.F in (None, 1) or v.id in have or v.op in ("load", "gather") or is_loop(v):
            return
        seen.add(v.id)
        if cost[v.id] >= KEEP and v.kind != "b" and first.setdefault(v.id, k) != k:
            kept[v.id] = first[v.id]
            return
        for a in v.args:
            walk(a, k, seen)

    for k, j in enumerate(jobs):
        seen: set[int] = set()
        for r in j.roots():
            walk(r, k, seen)
    return kept


def _check_in_place(jobs: list[Job], scalars: list[Store], have: Container[int]) -> None:
    """Every read of a storage must come no later than a store to it; stores of one column come last of all."""
    last: dict[object, int] = {}
    groups = [j.roots() for j in jobs] + [[st.v for st in scalars]]
    for k, roots in enumerate(groups):
        for v in nodes(roots, have, is_loop):
            if v.op == "load" and v.id not in have:
                last[v.at[0]] = k
    for k, j in enumerate(jobs):
        for st in j.stores:
            if last.get(st.sid, k) > k:
                raise Bail("an in-place write comes before a later loop of the row reads")
