"""How the programs' log lines look: text, or one JSON object a line."""

import json
import logging
import time

_TEXT = "%(levelname)s %(asctime)s %(message)s"


def configure_logging(kind: str, level: str) -> None:
    """Send the log to standard error, as "text" or "json", from `level` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter() if kind == "json" else _TextFormatter(_TEXT, "%m-%d %H:%M:%S")
    )
    logging.basicConfig(handlers=[handler])
    logging.getLogger("paged_jax").setLevel(level.upper())


class _TextFormatter(logging.Formatter):
    """Indents further lines: what a client wrote cannot look like a line of the server's."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without its traceback."""
        line = super().formatMessage(record)
        return line.replace("\r", "\\r").replace("\n", "\n  ")


class JsonFormatter(logging.Formatter):
    """Writes a record as an object; an `extra={"fields": {...}}` is added to it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
