"""32 prompts of many kinds: plain and chat, English, Chinese, emoji, code, digits, blanks."""

PLAIN = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "1, 1, 2, 3, 5, 8, 13,",
    "In 1969, Neil Armstrong",
    "The three laws of thermodynamics are:\n1.",
    "Water boils at 100 degrees",
    "def fibonacci(n):\n    ",
    "#include <stdio.h>\n\nint main(void) {\n",
    "SELECT name, COUNT(*) FROM users",
    '{"name": "Ada", "age": 36, "languages": [',
    "for (let i = 0; i < 10; i++) {",
    "\t\tif x:\n\t\t\treturn",
    "   leading blanks and   runs   of   them",
    "你好，世界。今天天气",
    "北京是中国的首都，",
    "😀 🌶 😀 🌶 😀",
    "Das Wetter in Berlin ist",
    "Привет, как дела?",
    "Q: What is 12 times 12?\nA:",
    "| name | price |\n|---|---|\n| apple |",
]

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "Write a Python function that reverses a string.",
    "用一句话介绍一下长城。",
    "Reply with emoji only: how do you feel? 😀",
    "List three prime numbers.",
    "Translate to German: good morning",
    "What is the difference between a list and a tuple?",
    "Summarise: The quick brown fox jumps over the lazy dog.",
    "Who wrote Hamlet?",
    "Give me a recipe for pancakes.",
]
