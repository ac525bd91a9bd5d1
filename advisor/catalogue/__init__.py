"""What the cloud providers sell, at which price, as of which day: offline, dated, checked."""

from advisor.catalogue.catalogue import Catalogue
from advisor.catalogue.columns import OfferColumns, PriceColumns, TypeColumns
from advisor.catalogue.gpus import GpuFilter, parse_gpus
from advisor.catalogue.nouns import Accelerator, InstanceType, Pricing
from advisor.catalogue.selection import OfferFilter

__all__ = [
    "Accelerator",
    "Catalogue",
    "GpuFilter",
    "InstanceType",
    "OfferColumns",
    "OfferFilter",
    "PriceColumns",
    "Pricing",
    "TypeColumns",
    "parse_gpus",
]
