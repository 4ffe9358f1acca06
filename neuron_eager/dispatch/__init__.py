"""Which way an op takes on the neuron device, and the way itself.

routes      the table, `register_kernel`
call        one call: key → dict → run; the decision on a miss
plan        what a kernel family sees and answers
build       KernelCall → something that runs
functions   Python functions as kernels
fallback    the CPU fallback, generated per op
special     ops that PyTorch routes specially for a device of its own
tracking    what ran; report: as a table
registry    registration with PyTorch
"""
from .explain import explain
from .registry import register
from .routes import register_kernel, route, unregister_kernel
from .tracking import clear_op_tracking, get_executed_ops, get_fallback_ops, op_report, track_ops

__all__ = ["clear_op_tracking", "explain", "get_executed_ops", "get_fallback_ops", "op_report", "register",
           "register_kernel", "route", "track_ops", "unregister_kernel"]
