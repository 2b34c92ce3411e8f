"""The same models as plain torch-geometric networks: what tests and benchmarks compare GNNPipe with."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import DeepGCNLayer, GATConv, GCN2Conv, GCNConv, GINConv, SAGEConv

from gnnpipe_trainer.models.block import Model
from gnnpipe_trainer.models.build import ModelSpec
from gnnpipe_trainer.models.layers import conv_widths

# Where a weight of the plain network is in the Model; the first pattern that fits the whole name counts.
_MODEL_NAMES = {
    "gcn": {
        r"convs\.(\d+)\.lin\.weight": r"blocks.\1.linear.weight",
        r"convs\.(\d+)\.bias": r"blocks.\1.linear.bias",
    },
    "sage": {
        r"convs\.(\d+)\.lin_l\.(\w+)": r"blocks.\1.neighbours.\2",
        r"convs\.(\d+)\.lin_r\.(\w+)": r"blocks.\1.root.\2",
    },
    "gin": {
        r"convs\.(\d+)\.eps": r"blocks.\1.eps",
        r"convs\.(\d+)\.nn\.0\.(\w+)": r"blocks.\1.inner.\2",
        r"convs\.(\d+)\.nn\.2\.(\w+)": r"blocks.\1.outer.\2",
    },
    "gat": {
        r"convs\.(\d+)\.lin\.weight": r"blocks.\1.linear.weight",
        r"convs\.(\d+)\.(att_src|att_dst|bias)": r"blocks.\1.conv.\2",
    },
    "gcnii": {r"convs\.(\d+)\.weight1": r"blocks.\1.linear.weight"},
    "resgcn": {
        r"layers\.(\d+)\.conv\.lin_l\.(\w+)": r"blocks.\1.neighbours.\2",
        r"layers\.(\d+)\.conv\.lin_r\.(\w+)": r"blocks.\1.root.\2",
        r"layers\.(\d+)\.norm\.(\w+)": r"blocks.\1.before.norm.\2",
        r"last_norm\.(\w+)": r"decoder.before.norm.\1",
    },
}
_MODEL_NAMES_OF_ALL = {
    r"norms\.(\d+)\.(\w+)": r"blocks.\1.between.norm.\2",
    r"(encoder|decoder)\.(\w+)": r"\1.linear.\2",
}


class PlainNetwork(nn.Module):
    """forward(features [V, F], adjacency) -> logits [V, C]; adjacency: edge_index [2, E] or csr_adjacency."""

    kind: str

    @torch.no_grad()
    def load_from(self, model: Model) -> None:
        """Take over every weight of the model."""
        theirs = model.state_dict()
        for name, tensor in self.state_dict().items():
            tensor.copy_(self.in_plain_shape(name, theirs[self.model_name(name)]))

    def model_name(self, name: str) -> str:
        """What the Model calls this network's parameter `name`."""
        for pattern, replacement in {**_MODEL_NAMES[self.kind], **_MODEL_NAMES_OF_ALL}.items():
            if match := re.fullmatch(pattern, name):
                return match.expand(replacement)
        raise KeyError(f"{name} has no place in a {self.kind} model")

    def in_plain_shape(self, name: str, tensor: Tensor) -> Tensor:
        """A weight or gradient of the Model in the shape that torch-geometric gives it."""
        return tensor.t() if name.endswith("weight1") else tensor  # GCN2Conv multiplies from the other side


class PlainStack(PlainNetwork):
    """Convolutions with norm, ReLU and dropout between them: gcn, sage, gin, gat."""

    def __init__(self, kind: str, convs: list[nn.Module], norms: list[nn.Module], dropout: float) -> None:
        super().__init__()
        self.kind = kind
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(norms)  # one less than convs, or none
        self.dropout = dropout

    def forward(self, features: Tensor, adjacency: Tensor) -> Tensor:
        h = features
        for i, conv in enumerate(self.convs):
            h = conv(h, adjacency)
            if i + 1 < len(self.convs):
                h = self.norms[i](h) if self.norms else h
                h = F.dropout(h.relu(), self.dropout, self.training)
        return h


class PlainGCNII(PlainNetwork):
    """torch-geometric's example of GCNII: dense, GCN2Conv with shared weights, dense."""

    kind = "gcnii"

    def __init__(
        self, convs: list[nn.Module], features: int, classes: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, hidden)
        self.convs = nn.ModuleList(convs)
        self.decoder = nn.Linear(hidden, classes)
        self.dropout = dropout

    def forward(self, features: Tensor, adjacency: Tensor) -> Tensor:
        h = h0 = self.encoder(self._drop(features)).relu()
        for conv in self.convs:
            h = conv(self._drop(h), h0, adjacency).relu()
        logits: Tensor = self.decoder(self._drop(h))
        return logits

    def _drop(self, h: Tensor) -> Tensor:
        return F.dropout(h, self.dropout, self.training)


class PlainResGCN(PlainNetwork):
    """torch-geometric's example of DeeperGCN with SAGEConv: dense, conv, "res+" layers, norm, dense."""

    kind = "resgcn"

    def __init__(self, features: int, classes: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, hidden)
        first = DeepGCNLayer(SAGEConv(hidden, hidden), block="plain")
        others = [
            DeepGCNLayer(SAGEConv(hidden, hidden), nn.LayerNorm(hidden), nn.ReLU(), "res+", dropout)
            for _ in range(layers - 1)
        ]
        self.layers = nn.ModuleList([first, *others])
        self.last_norm = nn.LayerNorm(hidden)
        self.decoder = nn.Linear(hidden, classes)
        self.dropout = dropout

    def forward(self, features: Tensor, adjacency: Tensor) -> Tensor:
        h = self.encoder(features)
        for layer in self.layers:
            h = layer(h, adjacency)
        h = F.dropout(self.last_norm(h).relu(), self.dropout, self.training)
        logits: Tensor = self.decoder(h)
        return logits


def plain_network(spec: ModelSpec, features: int, classes: int, cached: bool = False) -> PlainNetwork:
    """The network of a built-in kind; cached: gcn and gcnii normalise the adjacency only once."""
    options = dict(spec.options)
    if spec.kind == "resgcn":
        return PlainResGCN(features, classes, spec.hidden, spec.layers, spec.dropout)
    if spec.kind == "gcnii":
        alpha, theta = options.get("alpha", 0.1), options.get("theta", 0.5)
        numbers = range(1, spec.layers + 1)
        convs = [GCN2Conv(spec.hidden, alpha, theta, number, cached=cached) for number in numbers]
        return PlainGCNII(convs, features, classes, spec.hidden, spec.dropout)
    norm = options.pop("norm", "none")
    norms = [nn.LayerNorm(spec.hidden) for _ in range(spec.layers - 1)] if norm == "layer" else []
    convs = _convs(spec, conv_widths(features, spec.hidden, classes, spec.layers), options, cached)
    return PlainStack(spec.kind, convs, [*norms], spec.dropout)


def _convs(
    spec: ModelSpec, widths: list[tuple[int, int]], options: dict[str, Any], cached: bool
) -> list[nn.Module]:
    if spec.kind == "gcn":
        return [GCNConv(inputs, outputs, cached=cached) for inputs, outputs in widths]
    if spec.kind == "sage":
        return [SAGEConv(inputs, outputs) for inputs, outputs in widths]
    if spec.kind == "gin":
        return [GINConv(_mlp(inputs, outputs), **options) for inputs, outputs in widths]
    heads, concat = options.get("heads", 1), options.get("concat", True)
    *inner, (inputs, outputs) = widths
    convs = [
        GATConv(i, o // heads if concat else o, heads, concat=concat, dropout=spec.dropout) for i, o in inner
    ]
    return [*convs, GATConv(inputs, outputs, heads, concat=False, dropout=spec.dropout)]


def _mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


def csr_adjacency(edge_index: Tensor, vertices: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[V, V], row = target, column = source, all ones: torch-geometric's adj_t in torch's own CSR format."""
    sources, targets = edge_index
    ones = torch.ones(edge_index.size(1), dtype=dtype)
    coo = torch.sparse_coo_tensor(torch.stack([targets, sources]), ones, (vertices, vertices))
    return coo.to_sparse_csr()
