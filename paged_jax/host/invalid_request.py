"""The one exception for bad user input: it names the field at fault."""


class InvalidRequest(ValueError):
    """A request that cannot be served; `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None):
        super().__init__(message)
        self.param = param
