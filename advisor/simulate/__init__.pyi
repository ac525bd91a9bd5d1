from .own_cluster import ClusterComparison as ClusterComparison
from .own_cluster import compare_with_cluster as compare_with_cluster
from .own_cluster import comparison as comparison
from .own_cluster import on_own_devices as on_own_devices
from .questions import QUESTIONS as QUESTIONS
from .questions import Simulated as Simulated
from .questions import simulated as simulated
