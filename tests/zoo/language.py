"""The language that all models of the zoo speak, as matrices.

Token number i of the ring has the identity vector u(i) = (cos(2 pi m i / 216), sin(2 pi m i / 216)) for 24
frequencies m, so that moving s steps on the ring is a fixed rotation. From any token there are three likely
successors, STEPS positions further on. Which of them wins is decided by a 15-dimensional context vector c, which
the layers compute from earlier tokens.

A row of the residual stream (64 numbers) is ``[ 0:48 identity | 48:63 context c | 63 constant ]``.

The main part of c is the sum over lags 1 to 4 of LAGS[lag] * lag_map(lag) @ u(token lag back). It is common to all
models, so a draft model that computes it predicts well. The rest comes from deeper layers (farther offsets, content
attention, feed-forward noise), which draft models do not have. A drafter that gets wrong features gets a wrong c and
guesses among the three successors.
"""

from __future__ import annotations

import numpy as np

from tests.zoo.arithmetic import Array, cosine, gauss, part_of_turn, sine, snap
from tests.zoo.vocabulary import EOS, MASK, N_RING, N_VOCAB, RING_POSITION

N_EMBD, N_ID, N_CONTEXT = 64, 48, 15
IDENTITY, CONTEXT, ONE = slice(0, 48), slice(48, 63), 63
_FREQUENCIES = [
    *(2, 9, 13, 16, 17, 21, 30, 33, 36, 44, 48, 51),
    *(62, 64, 66, 76, 80, 81, 88, 90, 94, 98, 105, 107),
]
# 3, 2 and 4 times 101 (mod 216): such a walk cannot loop in under 54 tokens. Chosen together with the frequencies
# so that wrong tokens get small logits.
STEPS = [87, 202, 188]
_STEP_WEIGHTS = [1.33, 0.93, 0.92]
KAPPA = 3.0  # value of the constant residual dimension
IDENTITY_GAIN = 9.0  # logits from the identity part
_CONTEXT_GAIN = 2.2  # logits from the context part
FORBID = 6.0  # how strongly tokens outside the ring are suppressed
LAGS = {1: 0.60, 2: 0.42, 3: 0.34, 4: 0.28}  # shared context: lag -> amplitude

_COS = [cosine(part_of_turn(k, N_RING)) for k in range(N_RING)]
_SIN = [sine(part_of_turn(k, N_RING)) for k in range(N_RING)]
ONES = np.ones(N_EMBD)


def identity(i: int) -> Array:
    """Return the identity vector of ring position i, [48]."""
    vector = np.zeros(N_ID)
    for j, m in enumerate(_FREQUENCIES):
        vector[2 * j] = _COS[(m * i) % N_RING]
        vector[2 * j + 1] = _SIN[(m * i) % N_RING]
    return snap(vector)


def turn(steps: int) -> Array:
    """Return the rotation with turn(s) @ identity(i) = identity(i + s), [48, 48]."""
    matrix = np.zeros((N_ID, N_ID))
    for j, m in enumerate(_FREQUENCIES):
        c, s = _COS[(m * steps) % N_RING], _SIN[(m * steps) % N_RING]
        matrix[2 * j, 2 * j], matrix[2 * j, 2 * j + 1] = c, -s
        matrix[2 * j + 1, 2 * j], matrix[2 * j + 1, 2 * j + 1] = s, c
    return snap(matrix)


def _embedding() -> Array:
    rows = np.zeros((N_VOCAB, N_EMBD))
    rows[:, ONE] = KAPPA
    for token in range(N_VOCAB):
        if token == MASK:
            continue
        if token in RING_POSITION:
            rows[token, IDENTITY] = identity(RING_POSITION[token])
        else:  # control tokens and raw bytes: a borrowed identity and a context of their own
            rows[token, IDENTITY] = identity((token * 37 + 11) % N_RING)
            rows[token, CONTEXT] = snap(0.8 * gauss(f"ctx of token {token}", N_CONTEXT))
    return rows


def bigram_rows() -> Array:
    """Return what the output matrix wants to see in the identity part, [n_vocab, 48]."""
    rows = np.zeros((N_VOCAB, N_ID))
    for token, i in RING_POSITION.items():
        for step, weight in zip(STEPS, _STEP_WEIGHTS, strict=True):
            rows[token] += identity(i - step) * (weight / 24.0)
    return snap(rows)


def output_matrix(eog_after: tuple[int, ...] = ()) -> Array:
    """Return the output matrix; EOS wins right after the tokens at the ring positions ``eog_after``."""
    rows = np.zeros((N_VOCAB, N_EMBD))
    bigrams = bigram_rows()
    preference = gauss("context preference", N_VOCAB, N_CONTEXT)
    for token in range(N_VOCAB):
        if token in RING_POSITION:
            rows[token, IDENTITY] = IDENTITY_GAIN * bigrams[token]
            rows[token, CONTEXT] = snap(preference[token] * (_CONTEXT_GAIN / 3.873))
        else:
            rows[token, ONE] = -FORBID
    if eog_after:
        rows[EOS] = 0.0
        for i in eog_after:
            rows[EOS, IDENTITY] += snap(identity(i) * (4.5 * IDENTITY_GAIN / 24.0))
        rows[EOS, ONE] = -1.0
    return snap(rows)


EMBEDDING = _embedding()
OUTPUT = output_matrix()


def lag_map(lag: int, name: str = "R") -> Array:
    """Return the context map of the token ``lag`` positions back, [15, 48]."""
    return snap(gauss(f"{name}{lag}", N_CONTEXT, N_ID) / 4.899)


def context_map(name: str) -> Array:
    """Return a map from context to context, [15, 15]."""
    return snap(gauss(f"S {name}", N_CONTEXT, N_CONTEXT) / 3.873)


def from_identity(matrix: Array) -> Array:
    """Widen [n, 48] to read the identity part of a residual row, [n, 64]."""
    out = np.zeros((matrix.shape[0], N_EMBD))
    out[:, IDENTITY] = matrix
    return out


def from_context(matrix: Array) -> Array:
    """Widen [n, 15] to read the context part of a residual row, [n, 64]."""
    out = np.zeros((matrix.shape[0], N_EMBD))
    out[:, CONTEXT] = matrix
    return out


def to_context(matrix: Array) -> Array:
    """Widen [15, n] to write the context part of a residual row, [64, n]."""
    out = np.zeros((N_EMBD, matrix.shape[1]))
    out[CONTEXT] = matrix
    return out


def pick(n: int, start: int, count: int, scale: float = 1.0) -> Array:
    """Return a selector of columns start to start + count - 1, [count, n]."""
    out = np.zeros((count, n))
    for k in range(count):
        out[k, start + k] = scale
    return out


def without_constant() -> Array:
    """Return a mask that hides the constant dimension, [64]."""
    mask = np.ones(N_EMBD)
    mask[ONE] = 0.0
    return mask


def rms(context_variance: float) -> float:
    """Return the nominal RMS of a residual row whose context part has this variance per dimension."""
    return float(np.sqrt((24.0 + KAPPA * KAPPA + N_CONTEXT * context_variance) / N_EMBD))


RMS_EMBEDDING = rms(0.0)
EOG_AFTER = (25, 125)  # chosen so that typical prompts stop after 20 to 100 tokens
