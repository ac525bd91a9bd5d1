"""The files of a snapshot and what each column may hold.

========================================  ====================================================
file                                      one row
========================================  ====================================================
types[.PART].csv.gz                       an instance type
prices[.PART].csv.gz                      a (type, region): rows of its part's types, of regions
                                          and of provenance, counted from 0
regions.csv, provenance.csv               a region; a source with its date, status and licence
specifications.cc-by-sa-4.0.csv.gz        a type, measured or taken from Spare Cores: fills holes
accelerators.csv                          an accelerator, peaks dense
accelerator_memory.csv                    an accelerator: its memory, and the readings behind it
accelerators.cc-by-sa-4.0.csv             an accelerator, measured products
aliases.csv                               another name of an accelerator
networks.csv.gz                           a type: its network, as a page of the provider states it
processors.csv                            types by their names: the processor that pages state
burstable.csv                             types by their names: the share of each vCPU that lasts
links.cc-by-sa-4.0.csv                    an instance on which copies were measured
storage_and_egress.csv.gz                 a price of storage or of outgoing traffic
========================================  ====================================================

A part is a group of rows with a licence of its own. The bounds catch unit errors: no machine has
a tebibyte of vCPUs, and none costs a million dollars an hour.
"""

from __future__ import annotations

from typing import Final

from advisor.catalogue.tables import Column, text

MAX_PRICE_USD_PER_H: Final = 100_000.0  # the dearest instance of 2026 costs 492

TYPES: Final = (
    text("provider", is_required=True),
    text("instance_type", is_required=True),
    Column(name="vcpus", low=0.05, high=100_000),
    Column(name="memory_gib", low=0.05, high=1_000_000),
    text("cpu_arch"),
    text("cpu_model"),
    Column(name="coremark_per_vcpu", low=100, high=1_000_000),
    text("accelerator"),
    Column(name="accelerator_count", high=10_000, is_required=True),
    Column(name="network_gbps", high=1_000_000),
    Column(name="network_baseline_gbps", high=1_000_000),
    text("rdma"),
    text("intra_node_link"),
    Column(name="local_ssd_gb", high=10_000_000),
    text("source"),
)
PRICES: Final = (
    Column(name="type_id", is_required=True),
    Column(name="region_id", is_required=True),
    Column(name="on_demand_usd_per_h", low=1e-5, high=MAX_PRICE_USD_PER_H),
    Column(name="spot_usd_per_h", low=1e-5, high=MAX_PRICE_USD_PER_H),
    Column(name="spot_interruption_band", high=4),
    Column(name="provenance_id", is_required=True),
    Column(name="reserved_1y_usd_per_h", low=1e-5, high=MAX_PRICE_USD_PER_H, is_optional=True),
    Column(name="reserved_3y_usd_per_h", low=1e-5, high=MAX_PRICE_USD_PER_H, is_optional=True),
)
# Who says so, what the terms are, and since when it has been so.
SOURCED: Final = tuple(text(name, is_required=True) for name in ("source", "licence", "as_of"))
REGIONS: Final = (text("region", is_required=True),)
PROVENANCE: Final = (
    text("as_of"),
    text("status"),
    text("spot_status"),
    text("listing"),
    text("source", is_required=True),
    text("licence"),
)
SHARE_ALIKE_SPECIFICATIONS: Final = (
    text("provider", is_required=True),
    text("instance_type", is_required=True),
    Column(name="vcpus", low=0.05, high=100_000),
    Column(name="memory_gib", low=0.05, high=1_000_000),
    text("cpu_model"),
    Column(name="intra_node_gbs", high=100_000),
    text("intra_node_basis"),
    Column(name="host_device_gbs", high=100_000),
    text("host_device_basis"),
    Column(name="coremark_per_vcpu_converted", low=100, high=1_000_000),
)
ACCELERATORS: Final = (
    text("name", is_required=True),
    text("vendor"),
    text("architecture"),
    text("form"),
    Column(name="memory_gb", low=0.1, high=100_000, is_required=True),
    Column(name="memory_bandwidth_gbs", low=1, high=1_000_000),
    Column(name="fp32_tflops", high=1_000_000),
    Column(name="tf32_tflops", high=1_000_000),
    Column(name="fp16_tflops", high=1_000_000),
    Column(name="bf16_tflops", high=1_000_000),
    Column(name="fp8_tflops", high=1_000_000),
    Column(name="int8_tops", high=1_000_000),
    Column(name="tdp_w", high=100_000),
    text("interconnect"),
    Column(name="interconnect_gbs_per_direction", high=100_000),
    Column(name="interconnect_devices", low=2, high=100_000),
    Column(name="pcie_gen", low=1, high=10),
    Column(name="compute_capability", low=1, high=100),
    text("training_use"),
    Column(name="release_year", low=1990, high=2100),
    text("derivation"),
    text("source_1", is_required=True),
    text("source_2"),
)
ACCELERATOR_MEMORY: Final = (
    text("name", is_required=True),
    Column(name="memory_gib", low=0.1, high=100_000, is_required=True),
    text("basis", is_required=True),
    Column(name="sold_gb", low=0.1, high=100_000, is_required=True),
    text("has_ecc_in_memory"),
    Column(name="nvidia_smi_gib", low=0.1, high=100_000),
    Column(name="cuda_gib", low=0.1, high=100_000),
    text("source"),
)
SHARE_ALIKE_ACCELERATORS: Final = (
    text("name", is_required=True),
    Column(name="bf16_matmul_measured_tflops", high=1_000_000),
    Column(name="fp8_matmul_measured_tflops", high=1_000_000),
)
ALIASES: Final = (text("alias", is_required=True), text("name", is_required=True), text("kind"))
NETWORKS: Final = (
    text("provider", is_required=True),
    text("instance_type", is_required=True),
    Column(name="network_gbps", high=1_000_000),
    text("rdma"),
    text("basis", is_required=True),
    *SOURCED,
)
PROCESSORS: Final = (
    text("provider", is_required=True),
    text("instance_types", is_required=True),
    text("cpu_model", is_required=True),
    *SOURCED,
)
BURSTABLE: Final = (
    text("provider", is_required=True),
    text("instance_types", is_required=True),
    Column(name="vcpu_baseline", low=0.001, high=1),
    Column(name="launch_credits", high=100_000),
    Column(name="surplus_usd_per_vcpu_h", low=1e-5, high=100),
    text("coremark_at"),
    *SOURCED,
)
LINKS: Final = (
    text("provider", is_required=True),
    text("instance_type", is_required=True),
    text("gpu_name"),
    Column(name="gpu_count", low=0, high=10_000),
    Column(name="pcie_gen", low=1, high=10),
    Column(name="pcie_width", low=1, high=32),
    Column(name="h2d_gbs", high=100_000),
    Column(name="d2h_gbs", high=100_000),
    Column(name="d2d_min_gbs", high=100_000),
    Column(name="d2d_median_gbs", high=100_000),
    Column(name="d2d_max_gbs", high=100_000),
    text("p2p"),
    text("source"),
)
OTHER_PRICES: Final = (
    text("provider", is_required=True),
    text("region"),
    text("item", is_required=True),
    text("tier"),
    Column(name="price", low=0, high=1_000_000, is_required=True),
    text("unit", is_required=True),
    text("as_of"),
    text("source"),
)
REGIONS_FILE: Final = "regions.csv"
PROVENANCE_FILE: Final = "provenance.csv"
SPECIFICATIONS_FILE: Final = "specifications.cc-by-sa-4.0.csv.gz"
ACCELERATOR_MEMORY_FILE: Final = "accelerator_memory.csv"
ACCELERATORS_FILE: Final = "accelerators.csv"
SHARE_ALIKE_ACCELERATORS_FILE: Final = "accelerators.cc-by-sa-4.0.csv"
ALIASES_FILE: Final = "aliases.csv"
# Cards of a source whose licence is not confirmed, and their other names: may be deleted (NOTICE).
UNCONFIRMED_ACCELERATORS_FILE: Final = "accelerators.techpowerup.csv"
UNCONFIRMED_ALIASES_FILE: Final = "aliases.techpowerup.csv"
NETWORKS_FILE: Final = "networks.csv.gz"
PROCESSORS_FILE: Final = "processors.csv"
BURSTABLE_FILE: Final = "burstable.csv"
LINKS_FILE: Final = "links.cc-by-sa-4.0.csv"
OTHER_PRICES_FILE: Final = "storage_and_egress.csv.gz"
