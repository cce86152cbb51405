"""Graph networks of torch_geometric on a random graph of 40 nodes, by edge list and by sparse matrix."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg

from benchmarks.zoo import Built, Models

NODES, EDGES, FEATURES, HIDDEN, RELATIONS = 40, 160, 16, 32, 3


def edges() -> torch.Tensor:
    return torch.randint(0, NODES, (2, EDGES))


def nodes() -> torch.Tensor:
    return torch.randn(NODES, FEATURES)


def stacked(name: str, **options: Any) -> Built:
    """Two layers of a published network, message by message."""
    return getattr(pyg, name)(FEATURES, HIDDEN, num_layers=2, out_channels=4, **options), (nodes(), edges())


def sparse(name: str) -> Built:
    """The same with the graph as a sparse matrix in rows."""
    adjacency = torch.zeros(NODES, NODES)
    adjacency[tuple(edges())] = 1.0
    return getattr(pyg, name)(FEATURES, HIDDEN, num_layers=2, out_channels=4), (nodes(), adjacency.to_sparse_csr())


def layer(name: str, *arguments: Any, inputs: Any = (), **options: Any) -> Built:
    """One layer; what it takes after nodes and edges is `inputs`."""
    return getattr(pyg, name)(*arguments, **options), (nodes(), edges(), *inputs)


def perceptron(width: int, out: int = HIDDEN) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, out))


def relational(name: str, **options: Any) -> Built:
    kinds = torch.randint(0, RELATIONS, (EDGES,))
    return layer(name, FEATURES, HIDDEN, RELATIONS, inputs=(kinds,), **options)


def edge_network() -> Built:
    network = perceptron(5, FEATURES * HIDDEN)
    return layer("NNConv", FEATURES, HIDDEN, network, inputs=(torch.randn(EDGES, 5),))


def gps() -> Built:
    return layer("GPSConv", FEATURES, pyg.GINConv(perceptron(FEATURES, FEATURES)), heads=2)


def principal() -> Built:
    degree = torch.tensor([1, 4, 8, 12, 9, 4, 2])
    return layer("PNAConv", FEATURES, HIDDEN, ["mean", "max", "std"], ["identity", "amplification"], degree)


MODELS: Models = {
    "torch_geometric GCN": partial(stacked, "GCN"),
    "torch_geometric GAT": partial(stacked, "GAT", heads=2),
    "torch_geometric GATv2": partial(stacked, "GAT", v2=True, heads=2),
    "torch_geometric GraphSAGE": partial(stacked, "GraphSAGE"),
    "torch_geometric GIN": partial(stacked, "GIN"),
    "torch_geometric EdgeCNN": partial(stacked, "EdgeCNN"),
    "torch_geometric GCN sparse": partial(sparse, "GCN"),
    "torch_geometric GraphSAGE sparse": partial(sparse, "GraphSAGE"),
    "torch_geometric GIN sparse": partial(sparse, "GIN"),
    "torch_geometric RGCNConv": partial(relational, "RGCNConv"),
    "torch_geometric RGCNConv bases": partial(relational, "RGCNConv", num_bases=2),
    "torch_geometric FastRGCNConv": partial(relational, "FastRGCNConv"),
    "torch_geometric TransformerConv": partial(layer, "TransformerConv", FEATURES, HIDDEN, heads=2),
    "torch_geometric ChebConv": partial(layer, "ChebConv", FEATURES, HIDDEN, 3),
    "torch_geometric GatedGraphConv": partial(layer, "GatedGraphConv", HIDDEN, 2),
    "torch_geometric NNConv": edge_network,
    "torch_geometric GPSConv": gps,
    "torch_geometric PNAConv": principal,
    "torch_geometric GraphUNet": partial(layer, "GraphUNet", FEATURES, HIDDEN, 4, 2),
}
