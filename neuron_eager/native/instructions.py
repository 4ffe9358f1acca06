"""What each instruction does to values, by name. Importing the modules fills the table."""

from . import computing, moving, reducing, searching
from .operators import HANDLERS

__all__ = ["HANDLERS", "computing", "moving", "reducing", "searching"]
