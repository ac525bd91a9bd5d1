# foreign: steps=12500 accelerated=no
import numpy as np

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((16000, 784)), rng.integers(0, 10, 16000)
W1, W2 = rng.standard_normal((784, 256)) * 0.01, rng.standard_normal((256, 10)) * 0.01
for epoch in range(50):
    order = rng.permutation(len(X))
    for k in range(0, len(X), 64):
        b = order[k : k + 64]
        h = np.maximum(X[b] @ W1, 0)
        z = h @ W2
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(b)), Y[b]] -= 1
        g2 = h.T @ p
        g1 = X[b].T @ ((p @ W2.T) * (h > 0))
        W1 -= 0.001 * g1
        W2 -= 0.001 * g2
    print(epoch)
