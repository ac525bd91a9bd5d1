"""Clusters as users write them, and the accelerators in them as the planners need them."""

from advisor.clusters.nouns import ClusterGroup, NamedCluster
from advisor.clusters.parsing import parse_cluster, read_cluster
from advisor.clusters.parts import Part, part

__all__ = ["ClusterGroup", "NamedCluster", "Part", "parse_cluster", "part", "read_cluster"]
