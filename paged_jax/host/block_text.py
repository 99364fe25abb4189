"""A block map as text: a letter for each request, a sign for each block."""

from paged_jax.host.block_map import BlockMap

FREE, CACHED = ".", "-"
WIDTH = 64


def lines_of(blocks: BlockMap) -> list[str]:
    """Return the map in rows, and whose the letters are; capitals where several hold a block."""
    names = list(dict.fromkeys(sequence.request_id for sequence in blocks.sequences))
    letters = {name: chr(ord("a") + index % 26) for index, name in enumerate(names)}
    signs: list[str] = []
    for refs, is_cached, owner in zip(blocks.refs, blocks.cached, blocks.owners, strict=True):
        if owner < 0:
            signs.append(CACHED if is_cached else FREE)
        else:
            letter = letters[blocks.sequences[owner].request_id]
            signs.append(letter.upper() if refs > 1 else letter)
    text = "".join(signs)
    rows = [text[start : start + WIDTH] for start in range(0, len(text), WIDTH)]
    key = [f"{letters[name]} {name}" for name in names]
    return [*rows, f"{FREE} free, {CACHED} free but cached, capitals: shared", *key]
