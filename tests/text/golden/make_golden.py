"""Writes smollm2.jsonl.gz: 2,000 varied texts and their ids, as llama.cpp's tokenizer gives them.

Not part of the tests. Usage: pip install xllamacpp==2026.10.11549 (which carries llama.cpp), then

    python make_golden.py SmolLM2-135M-Instruct.Q4_1.gguf
"""

import ctypes
import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import xllamacpp

NUM_TEXTS = 2000
ENGLISH = (
    "The river wasn't frozen, so they'd walked along it; I'LL say nothing more about Dr. O'Neill's "
    '1,024 half-built boats -- "really?" -- e.g. in 1969 or at 3:45pm (GMT+1), costing $12.50 each.'
).split(" ")
CHINESE = "你好世界今天天气很好我们去北京吃饭。，！人工智能模型可以回答问题「」吗？龘靐"
OTHERS = (
    "Привет мир, مرحبا بالعالم שלום नमस्ते दुनिया สวัสดีชาวโลก 안녕하세요 こんにちは Ελληνικά Tiếng Việt"
)
EMOJI = ["😀", "👩‍🚀", "🌶", "🏳️‍🌈", "👍🏽", "🇳🇴", "❤️", "1️⃣", "🫠", "\u200d"]
CODE = (
    "def f(x: int) -> int:\n    return x**2 + 1  # square\n",
    "for (int i = 0; i < n; ++i) {\n\ta[i] += b[i] * 0x1F;\n}\n",
    "SELECT * FROM \"t\" WHERE a_1 >= 10 AND b != 'x';",
    '{"key": [1, 2.5e-3, null], "other": {"a": true}}',
    "<div class='a b'>&nbsp;</div>\r\n",
)
BLANKS = [
    " ",
    "  ",
    "    ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\x0b",
    "\x85",
    "\u2028",
]
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<repo_name>",
    "<|im_start",
    "|>",
    "<file_sep>",
]


def words(rng: random.Random) -> str:
    return " ".join(rng.choice(ENGLISH) for _ in range(rng.randint(1, 12)))


def cut(rng: random.Random, text: str) -> str:
    start = rng.randrange(len(text))
    return text[start : start + rng.randint(1, 24)]


def digits(rng: random.Random) -> str:
    number = rng.choice([rng.randint(0, 99), rng.randint(0, 10**12), rng.uniform(-1e6, 1e6)])
    return rng.choice([f"{number}", f"{number:,}", f"x{number}y", "٣٤٥", "½²Ⅷ", "１２"])


def code_points(rng: random.Random) -> str:
    """Characters from anywhere in Unicode 12, so that no table is newer than the other's."""
    ranges = [
        (0, 0x80),
        (0x80, 0x250),
        (0x370, 0x590),
        (0x900, 0xDFF),
        (0x2000, 0x27FF),
        (0x4E00, 0x9FEF),
    ]
    return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randint(1, 12)))


def raw_bytes(rng: random.Random) -> str:
    return rng.randbytes(rng.randint(1, 16)).decode(rng.choice(["latin-1", "cp437"]))


def piece(rng: random.Random) -> str:
    makers = [
        words,
        words,
        lambda rng: cut(rng, CHINESE),
        lambda rng: cut(rng, OTHERS),
        lambda rng: "".join(rng.choices(EMOJI, k=rng.randint(1, 4))),
        lambda rng: rng.choice(CODE),
        lambda rng: cut(rng, rng.choice(CODE)),
        digits,
        lambda rng: rng.choice(BLANKS) * rng.randint(1, 9),
        lambda rng: "".join(rng.choices(BLANKS, k=rng.randint(1, 5))),
        lambda rng: rng.choice(SPECIAL),
        code_points,
        raw_bytes,
    ]
    return rng.choice(makers)(rng)


def texts(num_texts: int, seed: int = 0) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(num_texts):
        yield "".join(piece(rng) for _ in range(rng.choice([1, 1, 2, 3, 5])))


class ModelParams(ctypes.Structure):
    """llama.cpp's defaults, opaque: larger than the real structure, which is passed in memory."""

    _fields_ = [("content", ctypes.c_byte * 1024)]


class Vocabulary:
    """llama.cpp's tokenizer of one GGUF file."""

    def __init__(self, path: str):
        library = next(Path(xllamacpp.__file__).parent.glob("*.so"))
        self._lib = ctypes.CDLL(str(library))
        self._lib.llama_model_default_params.restype = ModelParams
        self._lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
        self._lib.llama_model_load_from_file.restype = ctypes.c_void_p
        self._lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        self._lib.llama_model_get_vocab.restype = ctypes.c_void_p
        self._lib.llama_backend_init()
        params = self._lib.llama_model_default_params()
        self._model = self._lib.llama_model_load_from_file(path.encode(), params)
        self._vocab = ctypes.c_void_p(self._lib.llama_model_get_vocab(self._model))

    def tokenize(self, text: str) -> list[int]:
        """Ids of a plain text; the text of special tokens becomes their ids, and none are added."""
        raw = text.encode()
        ids = (ctypes.c_int32 * (len(raw) + 16))()
        count = self._lib.llama_tokenize(
            self._vocab, raw, len(raw), ids, len(ids), ctypes.c_bool(False), ctypes.c_bool(True)
        )
        return list(ids[:count])


def main(path: str) -> None:
    vocabulary = Vocabulary(path)
    rows = ({"text": text, "ids": vocabulary.tokenize(text)} for text in texts(NUM_TEXTS))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    target = Path(__file__).parent / "smollm2.jsonl.gz"
    target.write_bytes(gzip.compress(lines.encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
