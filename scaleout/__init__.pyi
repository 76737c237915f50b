from collections.abc import Callable

from scaleout.exercises import check as check
from scaleout.page.widget import show as show
from scaleout.page.widget import show_exercise as show_exercise

__version__: str

def face(room: str, **modules: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]: ...
