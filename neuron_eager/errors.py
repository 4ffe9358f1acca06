"""Every error a user can meet. Each class says what is wrong, where, and what to do next.

A class holds a message template; its fields are keyword arguments of the constructor and stay readable as attributes of
the error.
"""
from __future__ import annotations

from typing import Any


class NeuronEagerError(RuntimeError):
    """Base class of all errors raised by neuron_eager itself."""

    template = "{detail}"

    def __init__(self, **fields: Any):
        self.fields = fields
        super().__init__(self.template.format(**fields))

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.fields)


def _rebuild(cls: type[NeuronEagerError], fields: dict[str, Any]) -> NeuronEagerError:
    return cls(**fields)


# ---- settings

class SettingError(NeuronEagerError, ValueError):
    template = "{variable}={value} is not a valid setting; allowed: {allowed}"


# ---- device

class InvalidDeviceError(NeuronEagerError):
    template = ("neuron:{index} does not exist: valid indices are 0 to {last}. NEURON_EAGER_DEVICE_COUNT (now "
                "{count}), set before neuron_eager is imported, says how many devices there are")


class DeviceOwnedError(NeuronEagerError):
    template = ("another package ({owner}) has already registered the device {name!r} with PyTorch, and a process can "
                "have one such device only. Start without it: do not import it first, or set "
                "TORCH_DEVICE_BACKEND_AUTOLOAD=0 if `import torch` loads it")


class DataAssignmentError(NeuronEagerError):
    template = ("`.data` of a tensor on {target} can not be set to a tensor on {source}: PyTorch keeps a tensor's "
                "device for life. Move the module (module.to(...)), or exchange the two by "
                "torch.utils.swap_tensors(a, b)")


class UnsupportedTorchError(NeuronEagerError):
    template = ("this PyTorch ({version}) does not offer what the neuron device is built on: {missing}. "
                "neuron_eager supports torch {supported}")


# ---- NKI

class NkiError(NeuronEagerError):
    """A fault in a kernel, with the place in the author's source: fields `detail`, `where` (file:line or "")."""

    template = "{detail}"

    def __init__(self, detail: str, where: object = None, **fields: Any):
        where = "" if where is None else str(where)
        super().__init__(detail=f"{where}: {detail}" if where else detail, where=where, message=detail, **fields)

    def __reduce__(self) -> Any:
        fields = dict(self.fields)
        fields.pop("detail")
        return _rebuild_nki, (type(self), fields)


def _rebuild_nki(cls: type[NkiError], fields: dict[str, Any]) -> NkiError:
    return cls(fields.pop("message"), fields.pop("where") or None, **fields)


class NkiIndexError(NkiError, IndexError):
    """An index or slice outside a tensor, or one that the chip cannot address."""


class NkiShapeError(NkiError, ValueError):
    """A shape that the language does not allow here."""


class NkiTypeError(NkiError, TypeError):
    """A value of the wrong kind: an operator on tensors, a register in Python control flow, a wrong argument."""


class NkiValidationError(NkiError, AssertionError):
    """An instruction that the target's hardware would not execute: a limit, a buffer, a data type."""


class NkiUninitializedError(NkiError):
    """An element was read, or an output returned, that nothing has written."""


class NkiOutOfBoundsError(NkiError, IndexError):
    """An index known only at run time lies outside its tensor, with oob_mode.error."""


class NkiValueNeededError(NkiError, TypeError):
    """Python asked for the value of a tile or register while the kernel is traced without values."""


class NkiCapacityError(NkiError, MemoryError):
    """The live tiles of a kernel need more SBUF or PSUM than the target has."""


class NkiNotImplementedError(NkiError, NotImplementedError):
    """A part of the language that the embedded implementation does not have."""


class NkiRecursionError(NkiError, RecursionError):
    """A kernel that calls itself without end."""


class NkiWarning(UserWarning):
    """An instruction that the hardware accepts and whose result it does not define, or that is seldom meant."""


# ---- opcache

class CacheWarning(UserWarning):
    """Something is wrong with the cache of compiled kernels. Results are right; time is lost."""


class CacheFault(NeuronEagerError):
    """A fault of the cache, raised where `config.cache_strict` asks for it and warned of otherwise."""
    template = "compile cache at {place}: {detail}. {consequence}"


class CacheKeyError(NeuronEagerError, TypeError):
    template = ("part {part!r} of a cache key is {value}, a {type}; parts are str, int, float, bool, None, "
                "and lists, tuples and dicts (with str keys) of these")


class BundleError(NeuronEagerError):
    template = "bundle {path}: {detail}; nothing was imported. Export it again on the machine it came from"


# ---- native entries and objects

class Unavailable(NeuronEagerError):
    """A native path can not be used here. Whoever asked takes the Python path, which does the same, more slowly."""

    template = "the native path is unavailable: {reason}"


class ObjectFileError(NeuronEagerError, ValueError):
    template = "the compiled object can not be loaded: {detail}. Purge the cache of compiled kernels and run again"


class WordLanguageError(NeuronEagerError, ValueError):
    template = "{file}:{line}: {detail} (in {function}, a function of the word language)"


# ---- dispatch

class FallbackError(NeuronEagerError):
    """A CPU fallback where none is allowed (NEURON_EAGER_FALLBACK=error, `with neuron_eager.fallback("error")`)."""

    template = ("{op} would run on the CPU: {reason}\n  arguments: {arguments}\n  at {place}\n  {next_step}")


class NoKernelError(NeuronEagerError, NotImplementedError):
    template = ("{op} has no neuron kernel, no decomposition and no CPU kernel to fall back to. Give it one: "
                "neuron_eager.register_kernel({op!r}, kernel)")


class ViewFallbackError(NeuronEagerError, NotImplementedError):
    template = ("{op} returns a view, and a CPU fallback can not make one: it would not share storage and version "
                "counter with its source. Clone the argument and use a copying op, or run it on x.cpu()")


class UnsupportedLayoutError(NeuronEagerError, NotImplementedError):
    template = ("{op}: a {kind} tensor can not be on neuron, which has dense, strided tensors only. Call .to_dense() "
                "(sparse), torch.nested.to_padded_tensor (nested) or .dequantize() (quantized) first, or keep this "
                "tensor on the CPU")


class KernelSignatureError(NeuronEagerError, TypeError):
    template = "the kernel {kernel} can not be registered for {op}: {detail}. The op's schema: {schema}"


class KernelResultError(NeuronEagerError, ValueError):
    template = "kernel {kernel} for {op}: {detail}"


class KernelTypeError(NeuronEagerError):
    """A TypeError out of a kernel or its rule.

    Not one itself: Python's operators take a TypeError for "unsupported".
    """

    template = "the kernel of {op}({arguments}): {detail}"


class Float64Error(NeuronEagerError):
    template = ("{op} got a float64 tensor, and NEURON_EAGER_FLOAT64=error forbids it. Cast to float32, or set it to "
                "float32 (compute in float32) or cpu. At {place}")


class UnknownOpError(NeuronEagerError, LookupError):
    template = ("{op!r} names no op{nearest}. Names are like aten::mm, aten.mm, aten.add.Tensor, "
                "torch.ops.aten.mm.default")


# ---- lowering

class NativeUnsupported(NeuronEagerError):
    """A program that the native code generator has no form for. The interpreter runs it, with the same results."""

    template = "{where}kernel {kernel} has no native form: {reason}"

    def __init__(self, kernel: str, reason: str, where: object = None):
        super().__init__(kernel=kernel, reason=reason, where="" if where is None else f"{where}: ")


# ---- executors

class ExecutorError(NeuronEagerError):
    template = ("NEURON_EAGER_EXECUTOR={name} asks for kernels to go through neuronx-cc to a Trainium chip, which this "
                "version does not do; use auto, native or interpreter")
