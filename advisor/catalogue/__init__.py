"""Offers of the cloud providers: priced, dated, checked, and read offline."""

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
