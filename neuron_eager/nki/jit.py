"""`nki.jit`: kernels as objects that can be called, traced, simulated and inspected."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import NkiNotImplementedError, NkiRecursionError, NkiTypeError
from . import machine
from .base import flatten_tensors
from .buffers import shared_hbm
from .callable_module import make_callable
from .location import Loc, here
from .program import Program, TensorSpec
from .tensor import NkiTensor


class Kernel:
    """A kernel: a Python function over HBM tensors and compile-time constants.

    func: the function. name: its name. lnc: how many physical cores a launch uses; `kernel[2]` is the same kernel on
    two. Called inside a running kernel it is inlined; called with torch tensors or NumPy arrays it is launched.
    """

    def __init__(self, func: Callable[..., Any], lnc: int = 1, grid: bool = False) -> None:
        if isinstance(func, Kernel):
            func = func.func
        functools.update_wrapper(self, func)
        self.func: Callable[..., Any] = func
        self.lnc, self.grid = lnc, grid
        self.schedule: tuple[Any, ...] = ()
        self.simulated = False

    @property
    def name(self) -> str:
        return getattr(self.func, "__name__", type(self.func).__name__)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.func)

    @property
    def loc(self) -> Loc | None:
        code = getattr(inspect.unwrap(self.func), "__code__", None)
        return None if code is None else Loc(code, 0)

    def __getitem__(self, lnc: Any) -> Kernel:
        """The kernel on `lnc` physical cores (1 or 2) of a logical core."""
        if isinstance(lnc, tuple) and len(lnc) == 1:
            lnc = lnc[0]
        if lnc not in (1, 2):
            raise NkiTypeError(f"{self.name}[{lnc!r}]: a kernel runs on 1 or 2 cores; larger grids ended with NKI 0.1",
                               here())
        return self._copy(lnc=lnc, grid=True)

    def with_schedule(self, schedule: Sequence[Any]) -> Kernel:
        """The kernel with an order between named instructions. Execution here follows the program, which satisfies
        every valid order, so the pairs are only kept in `schedule`."""
        copy = self._copy()
        copy.schedule = tuple(schedule)
        return copy

    def _copy(self, **changes: Any) -> Kernel:
        copy = Kernel(self.func, changes.get("lnc", self.lnc), changes.get("grid", self.grid))
        copy.schedule, copy.simulated = self.schedule, changes.get("simulated", self.simulated)
        return copy

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        running = machine.active.machine
        if running is not None:
            return inline(self, running, args, kwargs)
        from .launch import launch
        return launch(self, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by parameter name, defaults filled in. Raises NkiTypeError that names the kernel's line."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise NkiTypeError(f"kernel {self.name}{self.signature}: {error}", self.loc) from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def invoke(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function with arguments by parameter name."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            value = arguments.get(name, parameter.default)
            if parameter.kind is parameter.VAR_POSITIONAL:
                args += list(value) if name in arguments else []
            elif parameter.kind is parameter.VAR_KEYWORD:
                kwargs.update(value if name in arguments else {})
            elif parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
        return self.func(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<nki kernel {self.name}{f'[{self.lnc}]' if self.grid else ''} at {self.loc}>"


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a kernel of a function: `@nki.jit`, `@nki.jit()` or `nki.jit(f)`. Returns a `Kernel`.

    `mode` and other options of earlier versions are ignored, except `platform_target`, which is an error as in NKI.
    """
    if "platform_target" in options:
        raise NkiTypeError("nki.jit has no platform_target; set NEURON_PLATFORM_TARGET_OVERRIDE=trn2 instead", here())
    if fn is None:
        return functools.partial(jit, **options)
    return Kernel(fn)


MAX_INLINE = 200


def inline(kernel: Kernel, running: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A kernel called by a kernel: its instructions go to the running machine."""
    kernel.bind(args, kwargs)
    running.depth += 1
    try:
        if running.depth > MAX_INLINE:
            raise NkiRecursionError(f"kernel {kernel.name} calls kernels {MAX_INLINE} deep; recursion without end?",
                                    here() or kernel.loc)
        return kernel.func(*args, **kwargs)
    finally:
        running.depth -= 1


def trace(kernel: Kernel | Callable[..., Any], specs: Mapping[str, Any] | Sequence[Any],
          constants: Mapping[str, Any] | None = None, *, target: str = "") -> Program:
    """Run a kernel once on tensors without values, and return the tile program it issues.

    specs: for each tensor parameter a TensorSpec, or a tuple of them; by name, or in parameter order.
    constants: the other arguments. target: the chip, where it is not the one in force. Raises what the kernel raises,
    an NkiError that names the line for anything the language or the target does not allow, and NkiValueNeededError
    where Python needs a tile's value.
    """
    from . import memcheck
    from .debugging import no_stops
    from .tracer import Tracer, gc_paused
    if not isinstance(kernel, Kernel):
        kernel = Kernel(kernel)
    if kernel.lnc != 1:
        raise NkiNotImplementedError(f"kernel {kernel.name}[{kernel.lnc}]: a program on two cores is not traced, only "
                                     "interpreted", kernel.loc)
    if not isinstance(specs, Mapping):
        names = [n for n in kernel.signature.parameters if n not in (constants or {})]
        specs = dict(zip(names, specs))
    tracer = Tracer(kernel.name, target)
    tracer.grid = kernel.grid
    tracer.program.loc = kernel.loc
    arguments = {name: _symbolic(tracer, name, spec) for name, spec in in_order(kernel, specs)}
    arguments.update(constants or {})
    arguments = kernel.bind((), arguments) if not _has_variadic(kernel) else arguments
    with gc_paused(), no_stops(), machine.use(tracer):
        result = run(kernel, arguments)
        outputs = checked_outputs(kernel, result)
        tracer.program.returns_tuple = isinstance(result, (tuple, list))
        program = tracer.finish(outputs)
        memcheck.check(program, tracer.limits)
    return program


def in_order(kernel: Kernel, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Items in the order of the kernel's parameters; names it does not have come last, so that binding reports them."""
    order = {name: i for i, name in enumerate(kernel.signature.parameters)}
    return sorted(values.items(), key=lambda item: order.get(item[0], len(order)))


def _has_variadic(kernel: Kernel) -> bool:
    return any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY)
               for p in kernel.signature.parameters.values())


def _symbolic(tracer: Any, name: str, spec: Any) -> Any:
    if isinstance(spec, TensorSpec):
        return tracer.argument(name, spec)
    if isinstance(spec, (tuple, list)):
        return tuple(_symbolic(tracer, f"{name}[{i}]", part) for i, part in enumerate(spec))
    return spec


def run(kernel: Kernel, arguments: Mapping[str, Any]) -> Any:
    """Call the kernel's function on the current machine, with endless recursion as an error of its own."""
    try:
        return kernel.invoke(arguments)
    except RecursionError as error:
        if isinstance(error, NkiRecursionError):
            raise
        raise NkiRecursionError(f"kernel {kernel.name} recurses without end", _deepest(error) or kernel.loc) from None


def _deepest(error: BaseException) -> Loc | None:
    """The author's line where most of the recursion happened: the innermost frame outside this package."""
    from . import location
    found, step = None, error.__traceback__
    while step is not None:
        if not location.is_internal(step.tb_frame.f_code.co_filename):
            found = Loc(step.tb_frame.f_code, step.tb_lasti)
        step = step.tb_next
    return found


def checked_outputs(kernel: Kernel, result: Any) -> list[NkiTensor]:
    """The tensors a kernel returned; an error for anything that cannot leave the chip."""
    if result is None:
        return []
    parts = result if isinstance(result, (tuple, list)) else (result,)
    for position, part in enumerate(parts):
        what = f"kernel {kernel.name} returns" + (f" as value {position}" if len(parts) > 1 else "")
        if not isinstance(part, NkiTensor):
            raise NkiTypeError(f"{what} {type(part).__name__}; a kernel returns tensors in nl.shared_hbm", kernel.loc)
        if part.storage.buffer.on_chip:
            raise NkiTypeError(f"{what} {part.describe()}, which is on chip; copy it to nl.ndarray(..., "
                               "buffer=nl.shared_hbm) with nisa.dma_copy and return that", part.storage.loc)
        if part.storage.buffer is not shared_hbm and not part.storage.is_argument:
            raise NkiTypeError(f"{what} {part.describe()}; allocate outputs in nl.shared_hbm", part.storage.loc)
        if part.dynamic:
            raise NkiTypeError(f"{what} {part.describe()}, whose address is known only at run time", kernel.loc)
    return flatten_tensors(list(parts))


make_callable(__name__, jit)
