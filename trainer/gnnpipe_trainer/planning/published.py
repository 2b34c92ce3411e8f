"""What the authors of GNNPipe measured, as far as it is public.

8 RTX A5000 in machines of 4, fp32, 32 layers unless said otherwise.
"""

from __future__ import annotations

MODELS = ("gcn", "sage", "gcnii", "resgcn")
# Vertices, directed edges, features, classes, hidden columns.
GRAPHS: dict[str, tuple[int, int, int, int, int]] = {
    "Squirrel": (5_201, 396_706, 2_089, 5, 1000),
    "Flickr": (89_250, 899_756, 500, 7, 100),
    "Reddit": (232_965, 114_615_892, 602, 41, 100),
    "Physics": (34_493, 495_924, 8_415, 5, 100),
}
REDDIT_MIRRORS = {2: 146e3, 4: 341e3, 8: 607e3, 16: 1.29e6}  # by parts
REDDIT_HYBRID_MIRRORS = 224e3  # two ways of shuffled chunks
# Gbit/s that a GPU reached: to the next stage, and when 2, 4 or 8 GPUs exchange.
BORDER_GBIT = 56
EXCHANGE_GBIT = {2: 155, 4: 100, 8: 32}
ONE_GPU_SECONDS = 1.922  # Reddit, GCN, 32 layers, chunked
# GiB per epoch on 8 GPUs: graph, pipeline, hybrid with 2 ways.
VOLUMES: dict[str, dict[str, tuple[float, float, float]]] = {
    "Squirrel": {
        "gcn": (4.43, 0.27, 1.38),
        "sage": (6.10, 0.27, 1.62),
        "gcnii": (4.53, 0.54, 1.51),
        "resgcn": (6.20, 0.27, 1.63),
    },
    "Flickr": {
        "gcn": (4.60, 0.47, 2.00),
        "sage": (4.62, 0.47, 2.00),
        "gcnii": (4.60, 0.93, 2.20),
        "resgcn": (4.62, 0.47, 2.00),
    },
    "Reddit": {
        "gcn": (14.5, 1.22, 5.87),
        "sage": (14.5, 1.22, 5.87),
        "gcnii": (14.5, 2.43, 6.39),
        "resgcn": (14.5, 1.22, 5.87),
    },
    "Physics": {
        "gcn": (0.88, 0.18, 0.62),
        "sage": (0.94, 0.18, 0.63),
        "gcnii": (0.88, 0.36, 0.70),
        "resgcn": (0.89, 0.18, 0.62),
    },
}
# Seconds per epoch of the same.
SECONDS: dict[str, dict[str, tuple[float, float, float]]] = {
    "Squirrel": {
        "gcn": (0.190, 0.081, 0.111),
        "sage": (0.268, 0.147, 0.191),
        "gcnii": (0.198, 0.108, 0.140),
        "resgcn": (0.269, 0.187, 0.241),
    },
    "Flickr": {
        "gcn": (0.156, 0.064, 0.090),
        "sage": (0.173, 0.104, 0.126),
        "gcnii": (0.166, 0.095, 0.116),
        "resgcn": (0.186, 0.162, 0.187),
    },
    "Reddit": {
        "gcn": (0.874, 0.357, 0.392),
        "sage": (1.082, 0.533, 0.568),
        "gcnii": (0.902, 0.415, 0.449),
        "resgcn": (0.934, 0.509, 0.546),
    },
    "Physics": {
        "gcn": (0.053, 0.066, 0.077),
        "sage": (0.069, 0.132, 0.125),
        "gcnii": (0.060, 0.108, 0.105),
        "resgcn": (0.080, 0.141, 0.153),
    },
}
# Reddit, 2, 4, 8 and 16 GPUs; None: out of memory.
STRONG: dict[str, dict[str, tuple[float | None, ...]]] = {
    "gcn": {"graph": (1.219, 0.934, 0.849, 0.854), "pipeline": (1.107, 0.598, 0.352, 0.256)},
    "sage": {"graph": (1.338, 0.995, 0.875, 0.877), "pipeline": (1.234, 0.680, 0.403, 0.293)},
    "gcnii": {"graph": (None, 1.002, 0.873, 0.873), "pipeline": (1.235, 0.687, 0.414, 0.309)},
    "resgcn": {"graph": (None, 1.100, 0.931, 0.912), "pipeline": (1.466, 0.829, 0.500, 0.384)},
}
# GCN with 8 layers per GPU on 1, 2, 4, 8 and 16 GPUs.
WEAK: dict[str, dict[str, tuple[float, ...]]] = {
    "Reddit": {"graph": (0.466, 0.601, 0.943, 1.679, 3.399), "pipeline": (0.474, 0.541, 0.593, 0.655, 0.779)},
    "Flickr": {"graph": (0.026, 0.050, 0.107, 0.292, 0.602), "pipeline": (0.037, 0.048, 0.069, 0.111, 0.207)},
    "Physics": {
        "graph": (0.026, 0.025, 0.044, 0.103, 0.314),
        "pipeline": (0.032, 0.043, 0.063, 0.105, 0.190),
    },
}
# GCNII on 8 GPUs with 8, 16, 32, 64 and 128 layers.
DEPTH: dict[str, dict[str, tuple[float, ...]]] = {
    "Squirrel": {
        "graph": (0.052, 0.098, 0.194, 0.382, 0.754),
        "pipeline": (0.048, 0.068, 0.109, 0.186, 0.341),
    },
    "Flickr": {"graph": (0.040, 0.079, 0.156, 0.313, 0.619), "pipeline": (0.049, 0.064, 0.095, 0.159, 0.284)},
    "Physics": {
        "graph": (0.020, 0.033, 0.060, 0.114, 0.220),
        "pipeline": (0.068, 0.082, 0.110, 0.164, 0.255),
    },
}
