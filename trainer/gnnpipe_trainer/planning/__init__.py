"""Know before you run: bytes, memory, bubble and time of every way to cut a job."""

from gnnpipe_trainer.planning.main import Sizes, main, plan_command

__all__ = ["Sizes", "main", "plan_command"]
