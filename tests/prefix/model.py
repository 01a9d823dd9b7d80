"""What the radix tree promises, on a dictionary of whole prefixes. No tests."""


class Dictionary:
    """The same promises on a dict from whole prefixes to [page, last use, locks]."""

    def __init__(self, size: int):
        self.size, self.clock = size, 0
        self.pages: dict[tuple, list] = {}

    def ends(self, tokens):
        return range(self.size, len(tokens) + 1, self.size)

    def match(self, name, tokens):
        self.clock += 1
        pages = []
        for end in self.ends(tokens):
            entry = self.pages.get((name, tuple(tokens[:end])))
            if entry is None:
                break
            entry[1] = self.clock
            pages.append(entry[0])
        return pages

    def insert(self, name, tokens, pages):
        known = len(self.match(name, tokens))
        for end, page in list(zip(self.ends(tokens), pages, strict=True))[known:]:
            self.pages[name, tuple(tokens[:end])] = [page, self.clock, 0]
        return pages[known:]

    def lock(self, name, tokens, by):
        for end in self.ends(tokens):
            self.pages[name, tuple(tokens[:end])][2] += by

    def evict(self, count):
        gone = []
        while len(gone) < count:
            inner = {(name, prefix[: -self.size]) for name, prefix in self.pages}
            leaves = [key for key, entry in self.pages.items() if key not in inner and not entry[2]]
            if not leaves:
                break
            oldest = min(leaves, key=lambda key: self.pages[key][1])
            gone.append((oldest[0], self.pages.pop(oldest)[0]))
        return gone
