"""The OpenAI-compatible HTTP server: JSON in, engine deltas out. It never touches an array."""

from server.app import ServerSettings, create_app

__all__ = ["ServerSettings", "create_app"]
