"""The two ways in which a run ends early without being a bug."""


class UserError(Exception):
    """Something the user can fix. The message is one sentence that names the fix; the process exits with 2."""


class Interrupted(BaseException):
    """The process was asked to stop (SIGINT 130, SIGTERM 143). State is saved; `resume=` goes on."""

    def __init__(self, code: int):
        super().__init__(f"interrupted ({code})")
        self.code = code
