"""From a model's files to its configuration and parameters: safetensors folders and GGUF files.

Files are data: nothing in them is ever executed, and pickles are never opened.
"""
