"""The files of a snapshot and what each column may hold.

========================================  ====================================================
file                                      one row
========================================  ====================================================
types[.PART].csv.gz                       an instance type
prices[.PART].csv.gz                      a (type, region): rows of its part's types, of regions
                                          and of provenance, counted from 0
regions.csv, provenance.csv               a region; a source with its date, status and licence
specifications.cc-by-sa-4.0.csv.gz        a type, measured or taken from Spare Cores: fills holes
accelerators[.techpowerup].csv            an accelerator
accelerators.cc-by-sa-4.0.csv             an accelerator, measured products
networks.csv.gz                           a type: its network, as a page of the provider states it
processors.csv                            types by their names: the processor that pages state
burstable.csv                             types by their names: the share of each vCPU that lasts
aws_regions.csv                           a region of AWS: its code by its name
links.cc-by-sa-4.0.csv                    an instance on which copies were measured
storage_and_egress.csv.gz                 a price of storage or of outgoing traffic
========================================  ====================================================

A part is a group of rows with a licence of its own. The bounds catch unit errors: no machine has
a tebibyte of vCPUs, and none costs a million dollars an hour.
"""

from __future__ import annotations

from typing import Final

from advisor.catalogue.tables import Column, text
from advisor.planners.core import GB, TERA

MAX_PRICE_USD_PER_H: Final = 100_000.0  # the dearest instance of 2026 costs 492

TYPES: Final = (
    text("provider", is_required=True),
    text("instance_type", is_required=True),
    Column(name="vcpus", low=0.05, high=100_000),
    Column(name="memory_gib", low=0.05, high=1_000_000, means="main memory"),
    text("cpu_arch"),
    text("cpu_model", "several, with commas between, where it may be any"),
    Column(name="coremark_per_vcpu", low=100, high=1_000_000, means="1/s, all vCPUs busy"),
    text("accelerator", "of an adapter: the provider's name of it; in the files the canonical"),
    Column(name="accelerator_count", high=10_000, is_required=True,
           means="a fraction is a share of one"),
    Column(name="network_gbps", high=1_000_000, means="Gbit/s as advertised"),
    Column(name="network_baseline_gbps", high=1_000_000, means="Gbit/s that last"),
    text("rdma", "transport, with its rate: IB-NDR-8x400"),
    text("intra_node_link", "nvswitch, pcie-host, ...; empty: unknown"),
    Column(name="local_ssd_gb", high=10_000_000),
    text("source", "of the specification"),
)  # fmt: skip
PRICES: Final = (
    Column(name="type_id", is_required=True),
    Column(name="region_id", is_required=True),
    Column(name="on_demand_usd_per_h", low=1e-5, high=MAX_PRICE_USD_PER_H),
    Column(name="spot_usd_per_h", low=1e-5, high=MAX_PRICE_USD_PER_H),
    Column(name="spot_interruption_band", high=4, means="AWS: 0 below 5 % a month, 4 above 20"),
    Column(name="provenance_id", is_required=True),
    Column(name="reserved_1y_usd_per_h", low=1e-5, high=MAX_PRICE_USD_PER_H, is_optional=True),
    Column(name="reserved_3y_usd_per_h", low=1e-5, high=MAX_PRICE_USD_PER_H, is_optional=True),
)
# What a source lists: a machine, and its prices in a region. ``accelerator_memory_gib`` is only
# checked, not kept: accelerators.csv is the authority.
LISTED: Final = (
    *TYPES,
    Column(name="accelerator_memory_gib", high=100_000),
    text("region", "where it is sold; empty: it has no price"),
    *(column for column in PRICES if not column.name.endswith("_id")),
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
# Precisions of which accelerators and devices state a dense peak.
PEAKS: Final = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")


def _rate(name: str, fact: str, means: str = "", unit: float = TERA) -> Column:
    return Column(name=name, high=1_000_000, unit=unit, fact=fact, means=means)


ACCELERATORS: Final = (
    text("name", "as answers say it", is_required=True),
    Column(name="aliases", kind="names", means="as providers and drivers call it, and people"),
    Column(name="suite_names", kind="names", means="as suites of measurements call it"),
    text("kind", "gpu, tpu or accelerator: which laws time it", is_required=True),
    Column(name="market", kind="text", fact="market", means="consumer: sold for games"),
    text("vendor", is_required=True),
    text("architecture", "chip family: what was fitted on one card of it holds for others"),
    text("generation", "whose tuned kernels it runs; empty: those of Volta and before"),
    text("form"),
    Column(name="dies", low=1, high=16, means="devices of a board, which share all but its link"),
    Column(name="memory_gb", low=0.1, high=100_000, is_required=True, means="as sold"),
    Column(name="has_ecc_in_memory", kind="flag", means="check bits lie among the data"),
    Column(name="nvidia_smi_gib", low=0.1, high=100_000, means="lowest total it reports"),
    Column(name="cuda_gib", low=0.1, high=100_000, means="lowest total that a program was told"),
    text("memory_source", "of the two readings"),
    Column(name="memory_bandwidth_gbs", low=1, high=1_000_000, unit=GB, fact="memory_bytes_per_s"),
    *(_rate(f"{one}_tflops", f"{one}_flop_per_s", "dense peak") for one in PEAKS),
    Column(name="fp64_share", high=1, means="of products in double precision, of the fp32 rate"),
    _rate("int8_tops", "int8_op_per_s", "dense peak"),
    _rate("sustained_fp32_tflops", "sustained_fp32_flop_per_s", "measured on large products"),
    _rate("sustained_fp16_tflops", "sustained_fp16_flop_per_s", "the same, of bf16 too"),
    _rate("best_fp16_tflops", "best_fp16_flop_per_s", "fastest product anybody measured: a cap"),
    _rate("layer_tflops", "layer_flop_per_s", "forward rate of a transformer layer, 16 bits"),
    Column(name="tdp_w", high=100_000),
    text("interconnect", "of its own, to its neighbours; none", fact="link"),
    Column(name="interconnect_gbs_per_direction", high=100_000, unit=GB, fact="link_bytes_per_s",
           means="nominal, all links of one together"),
    Column(name="interconnect_devices", kind="integer", low=2, high=100_000, fact="link_devices",
           means="that its switches join across machines; empty: it ends with the machine"),
    Column(name="chip_to_chip_gbs", high=100_000, unit=GB, fact="chip_to_chip_bytes_per_s",
           means="to the processor on its board, its share, one direction"),
    Column(name="pcie_gen", low=1, high=10, fact="pcie_generation"),
    text("pcie_peers", "no: messages between two of them go through host memory"),
    Column(name="pcie_copy_gbs", high=1_000, unit=GB, fact="pcie_copy_bytes_per_s",
           means="host copies, where clouds connect fewer lanes than it has"),
    Column(name="compute_capability", low=1, high=100),
    text("training_use", "yes, legacy, no, neuron or xla (needs that framework), or unlisted: "
         "known of runs only"),
    Column(name="release_year", kind="integer", low=1990, high=2100),
    text("vertex_name", "Vertex AI's name of it"),
    text("derivation"),
    text("source_1", is_required=True),
    text("source_2"),
    text("peak_source"),
    text("sustained_source"),
    text("as_of", "day of the rates"),
)  # fmt: skip
SHARE_ALIKE_ACCELERATORS: Final = (
    text("name", is_required=True),
    _rate("bf16_matmul_measured_tflops", "sustained_bf16_flop_per_s", "large products"),
    _rate("fp8_matmul_measured_tflops", "sustained_fp8_flop_per_s", "large products"),
)
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
AWS_REGIONS: Final = (
    text("name", "as in its price pages", is_required=True),
    text("code", is_required=True),
    *SOURCED,
)
LINKS: Final = (
    text("provider", is_required=True),
    text("instance_type", is_required=True),
    text("gpu_name"),
    Column(name="gpu_count", low=0, high=10_000),
    Column(name="pcie_gen", low=1, high=10, fact="pcie_generation"),
    Column(name="pcie_width", low=1, high=32, fact="pcie_lanes"),
    *(
        Column(name=f"{name}_gbs", high=100_000, unit=GB, fact=f"{fact}_bytes_per_s")
        for name, fact in (
            ("h2d", "host_to_device"),
            ("d2h", "device_to_host"),
            ("d2d_min", "device_to_device_min"),
            ("d2d_median", "device_to_device_median"),
            ("d2d_max", "device_to_device_max"),
        )
    ),
    text("p2p"),
    text("source"),
)
OTHER_PRICES: Final = (
    text("provider", is_required=True),
    text("region"),
    text("item", is_required=True),
    text("tier"),
    Column(
        name="price", low=0, high=1_000_000, is_required=True, fact="price_usd", means="per unit"
    ),
    text("unit", "USD/GiB, USD/GiB-month", is_required=True),
    text("as_of"),
    text("source"),
)
REGIONS_FILE: Final = "regions.csv"
PROVENANCE_FILE: Final = "provenance.csv"
SPECIFICATIONS_FILE: Final = "specifications.cc-by-sa-4.0.csv.gz"
ACCELERATORS_FILE: Final = "accelerators.csv"
SHARE_ALIKE_ACCELERATORS_FILE: Final = "accelerators.cc-by-sa-4.0.csv"
# Cards of a source whose licence is not confirmed: may be deleted (NOTICE).
UNCONFIRMED_ACCELERATORS_FILE: Final = "accelerators.techpowerup.csv"
NETWORKS_FILE: Final = "networks.csv.gz"
PROCESSORS_FILE: Final = "processors.csv"
BURSTABLE_FILE: Final = "burstable.csv"
AWS_REGIONS_FILE: Final = "aws_regions.csv"
LINKS_FILE: Final = "links.cc-by-sa-4.0.csv"
OTHER_PRICES_FILE: Final = "storage_and_egress.csv.gz"
