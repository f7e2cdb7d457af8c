"""Two samples of tokens side by side, with their chi-square statistic."""

from collections import Counter

PROMPT = [0, 24, 22, 7, 0, 27, 3, 6, 20, 19, 20, 30]


def show(title, plain, speculative):
    """Print both histograms of the tokens and how far they are apart."""
    one, two = Counter(plain), Counter(speculative)
    share = len(plain) / (len(plain) + len(speculative))
    statistic, cells = 0.0, 0
    print(f"{title}\n{'token':>8} {'plain':>8} {'speculative':>12}")
    for line, token in enumerate(sorted({*one, *two}, key=lambda token: -one[token] - two[token])):
        both = one[token] + two[token]
        if both >= 10:
            cells += 1
            statistic += (one[token] - both * share) ** 2 / (both * share)
            statistic += (two[token] - both * (1 - share)) ** 2 / (both * (1 - share))
        if line < 10:
            print(f"{token!s:>8} {one[token]:8} {two[token]:12}")
    print(f"chi-square {statistic:.1f} with {cells - 1} degrees of freedom (about as many if both had one law)")
