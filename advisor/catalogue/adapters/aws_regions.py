"""AWS writes regions by name in its price pages and by code everywhere else.

Names as published in AWS's list of locations; ``EU (...)`` and ``Europe (...)`` are both in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REGION_CODES: Final[Mapping[str, str]] = {
    "AWS GovCloud (US)": "us-gov-west-1",
    "AWS GovCloud (US-East)": "us-gov-east-1",
    "AWS GovCloud (US-West)": "us-gov-west-1",
    "Africa (Cape Town)": "af-south-1",
    "Asia Pacific (Hong Kong)": "ap-east-1",
    "Asia Pacific (Hyderabad)": "ap-south-2",
    "Asia Pacific (Jakarta)": "ap-southeast-3",
    "Asia Pacific (Malaysia)": "ap-southeast-5",
    "Asia Pacific (Melbourne)": "ap-southeast-4",
    "Asia Pacific (Mumbai)": "ap-south-1",
    "Asia Pacific (Osaka)": "ap-northeast-3",
    "Asia Pacific (Seoul)": "ap-northeast-2",
    "Asia Pacific (Singapore)": "ap-southeast-1",
    "Asia Pacific (Sydney)": "ap-southeast-2",
    "Asia Pacific (Taipei)": "ap-east-2",
    "Asia Pacific (Thailand)": "ap-southeast-7",
    "Asia Pacific (Tokyo)": "ap-northeast-1",
    "Canada (Central)": "ca-central-1",
    "Canada West (Calgary)": "ca-west-1",
    "EU (Frankfurt)": "eu-central-1",
    "EU (Ireland)": "eu-west-1",
    "EU (London)": "eu-west-2",
    "EU (Milan)": "eu-south-1",
    "EU (Paris)": "eu-west-3",
    "EU (Spain)": "eu-south-2",
    "EU (Stockholm)": "eu-north-1",
    "EU (Zurich)": "eu-central-2",
    "Israel (Tel Aviv)": "il-central-1",
    "Mexico (Central)": "mx-central-1",
    "Middle East (Bahrain)": "me-south-1",
    "Middle East (UAE)": "me-central-1",
    "South America (Sao Paulo)": "sa-east-1",
    "US East (N. Virginia)": "us-east-1",
    "US East (Ohio)": "us-east-2",
    "US West (N. California)": "us-west-1",
    "US West (Oregon)": "us-west-2",
}


def region_code(name: str) -> str | None:
    """Return the code of a region, or None where the name is of no region (a local zone).

    >>> region_code("Europe (Ireland)"), region_code("US East (Boston)")
    ('eu-west-1', None)
    """
    return REGION_CODES.get(name.replace("Europe (", "EU (", 1))
