"""Offers of the cloud providers: priced, dated, checked, and read offline."""

from advisor.catalogue.catalogue import Catalogue
from advisor.catalogue.columns import (
    Accelerator,
    InstanceType,
    OfferColumns,
    PriceColumns,
    Pricing,
    TypeColumns,
)
from advisor.catalogue.select import GpuFilter, OfferFilter, parse_gpus

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
