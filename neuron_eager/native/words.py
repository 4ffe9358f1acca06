"""The word language: native code written as plain Python functions, compiled to LLVM IR. About the level of BCPL.

Every value is one 64-bit word, an integer or an address.

    p[3]                    the word at p + 24;  p[3] = v  stores it
    local(n)                the address of n words of stack, the same ones at each turn of a loop
    f(x, y)                 a word-language function, or a C function declared by `extern`
    name                    a variable; a module-level int is a constant; a function, or a C object declared by
                            `extern`, is its address
    + - * & | ^ << >>       on words; >> is logical;  comparisons are signed;  and, or, not  short-circuit
    a if c else b

Statements: assignment (to tuples too: all values are computed first), `x: Word = y`, `x += 1`, if, while,
`for i in range(n)` (n is read at each turn), break, continue, return, pass, docstrings, and

    try:                    cleanup also runs when a C++ exception passes through; the exception goes on
        f(x)
    finally:
        cleanup(x)

A name that is none of these, and any other Python, is a `WordLanguageError` with file and line.

A function here is never run by Python: `Module` reads its source. Names are looked up as Python would, in the module
that defines the function, so that linters and editors understand word-language files.
"""
from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import WordLanguageError

Word = Any      # for annotations of word-language functions; Python's own int has no subscript


class Extern:
    """A C function or object. `returns`: what the function gives, brought to a word; a double gives its bits."""

    def __init__(self, name: str, returns: str):
        self.name, self.returns = name, returns


class Intrinsic:
    """An operation of the language that is written as a call."""

    def __init__(self, name: str, arguments: int | None):
        self.name, self.arguments = name, arguments


def extern(name: str, returns: str = "word") -> Word:
    """Declare a C symbol. returns: "word" (64 bits, or nothing that is looked at), "int" (32, signed) or "double"."""
    return Extern(name, returns)


def _intrinsic(name: str, arguments: int | None) -> Word:
    return Intrinsic(name, arguments)


local = _intrinsic("local", 1)
call = _intrinsic("call", None)                     # call(address, ...): an indirect call that returns a word
call_int = _intrinsic("call_int", None)             # the same for a C function that returns an int
atomic_add = _intrinsic("atomic_add", 2)            # (p, v) -> the word before
swap = _intrinsic("swap", 2)                        # (p, v) -> the word before
compare_swap = _intrinsic("compare_swap", 3)        # (p, old, new) -> 1 if p held old and holds new, else 0
acquire = _intrinsic("acquire", 1)                  # (p) -> the word, with acquire order
float_of_double = _intrinsic("float_of_double", 1)  # bits of a double -> bits of the nearest float
float_of_int = _intrinsic("float_of_int", 1)        # integer -> bits of the nearest float

_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
           ast.LShift: "shl", ast.RShift: "lshr"}
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge"}
_TYPE = {"word": "i64", "int": "i32", "double": "double"}
_PERSONALITY = "__gxx_personality_v0"


class Module:
    """Functions compiled together. `exported` ones get symbols; what they call is found and kept internal."""

    def __init__(self, exported: Iterable[Callable[..., Word]]):
        self.functions: dict[str, Callable[..., Word]] = {f.__name__: f for f in exported}
        self.exported = tuple(self.functions)
        self.objects: set[str] = set()
        self.externs: dict[str, tuple[Extern, int]] = {}
        self.unwinds = False
        self.bodies: dict[str, str] = {}
        while len(self.bodies) < len(self.functions):               # compiling a function may add those it calls
            for name, function in list(self.functions.items()):
                if name not in self.bodies:
                    self.bodies[name] = _Compiler(self, function).text(name in self.exported)

    @property
    def text(self) -> str:
        """The module as LLVM IR."""
        lines = [f"@{name} = external global i8" for name in sorted(self.objects - set(self.externs))]
        lines += [f"declare {_TYPE[e.returns]} @{name}({', '.join(['i64'] * n)})"
                  for name, (e, n) in sorted(self.externs.items())]
        if self.unwinds:
            lines.append(f"declare i32 @{_PERSONALITY}(...)")
        return "\n".join(lines + list(self.bodies.values()))

    @property
    def symbols(self) -> list[str]:
        """The C symbols it refers to."""
        return sorted(self.objects | set(self.externs) | ({_PERSONALITY} if self.unwinds else set()))


def compile_object(text: str) -> bytes:
    """LLVM IR -> an object file for this machine's architecture, any CPU of it. Imports llvmlite."""
    import llvmlite.binding as llvm
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(f'target triple = "{llvm.get_default_triple()}"\n{text}')
    module.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    return machine.emit_object(module)


class _Compiler:
    """One function. Variables are stack slots; LLVM's passes turn them into registers."""

    def __init__(self, module: Module, function: Callable[..., Word]):
        self.module, self.function = module, function
        self.scope = function.__globals__
        source, self.first_line = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(source))).body[0]
        if not isinstance(tree, ast.FunctionDef) or tree.args.kwonlyargs or tree.args.vararg or tree.args.defaults:
            raise self.error(tree, "only plain functions with positional parameters")
        self.parameters = [a.arg for a in tree.args.args]
        stored = (n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        self.variables = dict.fromkeys([*self.parameters, *stored])
        self.count = 0
        self.head = [f"%{v} = alloca i64" for v in self.variables]
        self.head += [f"store i64 %arg.{p}, ptr %{p}" for p in self.parameters]
        self.body: list[str] = []
        self.loops: list[str] = []
        self.pad: str | None = None             # where calls unwind to, inside a try
        self.has_pad = False
        self.block(tree.body)
        self.emit("ret i64 0")

    def text(self, exported: bool) -> str:
        linkage = "" if exported else "internal "
        personality = f" personality ptr @{_PERSONALITY}" if self.has_pad else ""
        parameters = ", ".join(f"i64 %arg.{p}" for p in self.parameters)
        lines = "\n".join(line if line.endswith(":") else "  " + line for line in self.head + self.body)
        return f"define {linkage}i64 @{self.function.__name__}({parameters}) uwtable{personality} {{\n{lines}\n}}\n"

    def error(self, node: Any, detail: str) -> WordLanguageError:
        line = self.first_line + getattr(node, "lineno", 1) - 1
        return WordLanguageError(file=inspect.getsourcefile(self.function), line=line, detail=detail,
                                 function=self.function.__name__)

    # ---- emitting
    def fresh(self) -> str:
        self.count += 1
        return f"%.{self.count}"

    def emit(self, line: str) -> None:
        self.body.append(line)

    def label(self, name: str) -> None:
        self.body.append(f"{name[1:]}:")

    def unreachable(self) -> None:
        """Start a block for whatever is written after a return or break."""
        self.label(self.fresh() + ".dead")

    def value(self, operation: str) -> str:
        result = self.fresh()
        self.emit(f"{result} = {operation}")
        return result

    def pointer(self, word: str) -> str:
        return self.value(f"inttoptr i64 {word} to ptr")

    # ---- expressions
    def expression(self, e: ast.expr) -> str:
        match e:
            case ast.Constant(value=int(value)):
                return str(int(value))
            case ast.Name():
                return self.name(e)
            case ast.BinOp() if type(e.op) in _BINARY:
                return self.value(f"{_BINARY[type(e.op)]} i64 {self.expression(e.left)}, {self.expression(e.right)}")
            case ast.UnaryOp(op=ast.USub()):
                return self.value(f"sub i64 0, {self.expression(e.operand)}")
            case ast.UnaryOp(op=ast.Invert()):
                return self.value(f"xor i64 {self.expression(e.operand)}, -1")
            case ast.Subscript():
                return self.value(f"load i64, ptr {self.element(e)}")
            case ast.Call():
                return self.call(e)
            case ast.IfExp():
                slot = self.slot("i64")
                self.branch(e.test, lambda: self.emit(f"store i64 {self.expression(e.body)}, ptr {slot}"),
                            lambda: self.emit(f"store i64 {self.expression(e.orelse)}, ptr {slot}"))
                return self.value(f"load i64, ptr {slot}")
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.value(f"zext i1 {self.condition(e)} to i64")
        raise self.error(e, f"{ast.unparse(e)} is not an expression of the language")

    def name(self, e: ast.Name) -> str:
        if e.id in self.variables:
            return self.value(f"load i64, ptr %{e.id}")
        known = self.lookup(e)
        if isinstance(known, int):
            return str(int(known))
        if isinstance(known, Extern):
            self.module.objects.add(known.name)
            return self.value(f"ptrtoint ptr @{known.name} to i64")
        if inspect.isfunction(known):
            return self.value(f"ptrtoint ptr @{self.wanted(e, known)} to i64")
        raise self.error(e, f"{e.id} is not a word")

    def wanted(self, e: ast.expr, function: Callable[..., Word]) -> str:
        """Have a word-language function compiled into the module; its name."""
        if self.module.functions.setdefault(function.__name__, function) is not function:
            raise self.error(e, f"there are two functions named {function.__name__}")
        return function.__name__

    def lookup(self, e: ast.Name) -> Any:
        if e.id not in self.scope:
            raise self.error(e, f"unknown name {e.id}")
        return self.scope[e.id]

    def element(self, e: ast.Subscript) -> str:
        base, index = self.pointer(self.expression(e.value)), self.expression(e.slice)
        return self.value(f"getelementptr i64, ptr {base}, i64 {index}")

    def slot(self, kind: str) -> str:
        slot = self.fresh()
        self.head.append(f"{slot} = alloca {kind}, align 16")
        return slot

    def call(self, e: ast.Call) -> str:
        if not isinstance(e.func, ast.Name) or e.keywords:
            raise self.error(e, "only calls of a name, with positional arguments")
        target = self.lookup(e.func)
        if isinstance(target, Intrinsic):
            return self.intrinsic(e, target)
        arguments = [self.expression(a) for a in e.args]
        if isinstance(target, Extern):
            declared = self.module.externs.setdefault(target.name, (target, len(arguments)))[1]
            if declared != len(arguments):
                raise self.error(e, f"{target.name} gets {len(arguments)} arguments here, {declared} elsewhere")
            return self.invoke(f"@{target.name}", arguments, target.returns)
        if not inspect.isfunction(target):
            raise self.error(e, f"{e.func.id} can not be called")
        if target.__code__.co_argcount != len(arguments):
            raise self.error(e, f"{target.__name__} takes {target.__code__.co_argcount} arguments")
        return self.invoke(f"@{self.wanted(e, target)}", arguments, "word")

    def invoke(self, target: str, arguments: list[str], returns: str) -> str:
        operands = f"{_TYPE[returns]} {target}({', '.join('i64 ' + a for a in arguments)})"
        if self.pad is None:
            result = self.value(f"call {operands}")
        else:
            after = self.fresh() + ".after"
            result = self.value(f"invoke {operands} to label {after} unwind label {self.pad}")
            self.label(after)
        if returns == "int":
            return self.value(f"sext i32 {result} to i64")
        return self.value(f"bitcast double {result} to i64") if returns == "double" else result

    def intrinsic(self, e: ast.Call, what: Intrinsic) -> str:
        if what.arguments is not None and len(e.args) != what.arguments:
            raise self.error(e, f"{what.name} takes {what.arguments} arguments")
        if what.name == "local":
            size = e.args[0]
            words = self.scope.get(size.id) if isinstance(size, ast.Name) else getattr(size, "value", None)
            if not isinstance(words, int):
                raise self.error(e, "the size of a local is a constant")
            return self.value(f"ptrtoint ptr {self.slot(f'[{words} x i64]')} to i64")
        a = [self.expression(x) for x in e.args]
        match what.name:
            case "call" | "call_int":
                return self.invoke(self.pointer(a[0]), a[1:], "int" if what.name == "call_int" else "word")
            case "atomic_add":
                return self.value(f"atomicrmw add ptr {self.pointer(a[0])}, i64 {a[1]} acq_rel")
            case "swap":
                return self.value(f"atomicrmw xchg ptr {self.pointer(a[0])}, i64 {a[1]} acq_rel")
            case "compare_swap":
                pair = self.value(f"cmpxchg ptr {self.pointer(a[0])}, i64 {a[1]}, i64 {a[2]} acq_rel monotonic")
                return self.value(f"zext i1 {self.value(f'extractvalue {{ i64, i1 }} {pair}, 1')} to i64")
            case "acquire":
                return self.value(f"load atomic i64, ptr {self.pointer(a[0])} acquire, align 8")
            case "float_of_double":
                single = self.value(f"fptrunc double {self.value(f'bitcast i64 {a[0]} to double')} to float")
            case _:
                single = self.value(f"sitofp i64 {a[0]} to float")
        return self.value(f"zext i32 {self.value(f'bitcast float {single} to i32')} to i64")

    def condition(self, e: ast.expr) -> str:
        match e:
            case ast.Compare(ops=[op]) if type(op) in _COMPARE:
                left, right = self.expression(e.left), self.expression(e.comparators[0])
                return self.value(f"icmp {_COMPARE[type(op)]} i64 {left}, {right}")
            case ast.Compare():
                raise self.error(e, f"{ast.unparse(e)} is not a comparison of the language")
            case ast.UnaryOp(op=ast.Not()):
                return self.value(f"xor i1 {self.condition(e.operand)}, true")
            case ast.BoolOp():
                slot, end = self.slot("i1"), self.fresh() + ".end"
                for part in e.values:
                    c, after = self.condition(part), self.fresh() + ".next"
                    self.emit(f"store i1 {c}, ptr {slot}")
                    yes, no = (after, end) if isinstance(e.op, ast.And) else (end, after)
                    self.emit(f"br i1 {c}, label {yes}, label {no}")
                    self.label(after)
                self.emit(f"br label {end}")
                self.label(end)
                return self.value(f"load i1, ptr {slot}")
        return self.value(f"icmp ne i64 {self.expression(e)}, 0")

    # ---- statements
    def block(self, body: Iterable[ast.stmt]) -> None:
        for s in body:
            self.statement(s)

    def branch(self, test: ast.expr, yes: Callable[[], None], no: Callable[[], None]) -> None:
        n = self.fresh()
        self.emit(f"br i1 {self.condition(test)}, label {n}.then, label {n}.else")
        for part, run in (("then", yes), ("else", no)):
            self.label(f"{n}.{part}")
            run()
            self.emit(f"br label {n}.end")
        self.label(f"{n}.end")

    def statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, value)
            case ast.AugAssign() if type(s.op) in _BINARY:
                self.assign(s.target, ast.copy_location(ast.BinOp(_loaded(s.target), s.op, s.value), s))
            case ast.If():
                self.branch(s.test, lambda: self.block(s.body), lambda: self.block(s.orelse))
            case ast.While(orelse=[]):
                self.loop(s.test, s.body, ())
            case ast.For(target=ast.Name(id=i), iter=ast.Call(func=ast.Name(id="range"), args=[limit]), orelse=[]):
                self.emit(f"store i64 0, ptr %{i}")
                test = ast.copy_location(ast.Compare(ast.Name(i, ast.Load()), [ast.Lt()], [limit]), s)
                step = ast.parse(f"{i} += 1").body
                self.loop(test, s.body, step)
            case ast.Try(handlers=[], orelse=[]):
                self.try_finally(s)
            case ast.Return(value=value):
                if self.pad is not None:
                    raise self.error(s, "return inside try")
                self.emit(f"ret i64 {self.expression(value) if value else '0'}")
                self.unreachable()
            case ast.Break() | ast.Continue():
                if not self.loops:
                    raise self.error(s, "not inside a loop")
                self.emit(f"br label {self.loops[-1]}.{'end' if isinstance(s, ast.Break) else 'step'}")
                self.unreachable()
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                pass
            case ast.Expr(value=ast.Call() as e):
                self.expression(e)
            case _:
                raise self.error(s, f"{ast.unparse(s).splitlines()[0]!r} is not a statement of the language")

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) != isinstance(value, ast.Tuple):
            raise self.error(target, "a tuple is assigned to as many names as it has values")
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        if len(targets) != len(values):
            raise self.error(target, f"{len(values)} values for {len(targets)} targets")
        for t, word in zip(targets, [self.expression(v) for v in values]):
            if isinstance(t, ast.Name):
                self.emit(f"store i64 {word}, ptr %{t.id}")
            elif isinstance(t, ast.Subscript):
                self.emit(f"store i64 {word}, ptr {self.element(t)}")
            else:
                raise self.error(t, f"{ast.unparse(t)} can not be assigned to")

    def loop(self, test: ast.expr, body: Iterable[ast.stmt], step: Iterable[ast.stmt]) -> None:
        n = self.fresh()
        self.emit(f"br label {n}.test")
        self.label(f"{n}.test")
        self.emit(f"br i1 {self.condition(test)}, label {n}.body, label {n}.end")
        self.label(f"{n}.body")
        self.loops.append(n)
        self.block(body)
        self.loops.pop()
        self.emit(f"br label {n}.step")
        self.label(f"{n}.step")
        self.block(step)
        self.emit(f"br label {n}.test")
        self.label(f"{n}.end")

    def try_finally(self, s: ast.Try) -> None:
        if self.pad is not None or self.loops:
            raise self.error(s, "try inside a try or a loop")
        n = self.fresh()
        self.pad, self.has_pad, self.module.unwinds = f"{n}.pad", True, True
        self.block(s.body)
        self.pad = None
        self.block(s.finalbody)
        self.emit(f"br label {n}.end")
        self.label(f"{n}.pad")
        exception = self.value("landingpad { ptr, i32 } cleanup")
        self.block(s.finalbody)
        self.emit(f"resume {{ ptr, i32 }} {exception}")
        self.label(f"{n}.end")


def _loaded(target: ast.expr) -> ast.expr:
    """The same expression, read."""
    if isinstance(target, ast.Subscript):
        return ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)
    return ast.copy_location(ast.Name(target.id, ast.Load()), target) if isinstance(target, ast.Name) else target
