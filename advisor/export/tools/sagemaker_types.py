"""Machines that SageMaker trains on, by family: ``TrainingInstanceType`` of botocore 1.44.5.

``tests/test_export_tools.py`` compares them with the botocore that is installed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SIZES: Final[Mapping[str, str]] = {
    "c4": "xlarge 2xlarge 4xlarge 8xlarge",
    "c5": "xlarge 2xlarge 4xlarge 9xlarge 18xlarge",
    "c5n": "xlarge 2xlarge 4xlarge 9xlarge 18xlarge",
    "c6i": "xlarge 2xlarge 8xlarge 4xlarge 12xlarge 16xlarge 24xlarge 32xlarge",
    "c7i": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge",
    "c7i-flex": "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge",
    "c8i": "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge 48xlarge 96xlarge",
    "c8i-flex": "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge",
    "g4dn": "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge",
    "g5": "xlarge 2xlarge 4xlarge 8xlarge 16xlarge 12xlarge 24xlarge 48xlarge",
    "g6": "xlarge 2xlarge 4xlarge 8xlarge 16xlarge 12xlarge 24xlarge 48xlarge",
    "g6e": "xlarge 2xlarge 4xlarge 8xlarge 16xlarge 12xlarge 24xlarge 48xlarge",
    "g7": "2xlarge 4xlarge 8xlarge 12xlarge 24xlarge 48xlarge",
    "g7e": "2xlarge 4xlarge 8xlarge 12xlarge 24xlarge 48xlarge",
    "m4": "xlarge 2xlarge 4xlarge 10xlarge 16xlarge",
    "m5": "large xlarge 2xlarge 4xlarge 12xlarge 24xlarge",
    "m6i": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge",
    "m7i": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge",
    "m7i-flex": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge",
    "m8i": "large xlarge 2xlarge 4xlarge 8xlarge "
    "12xlarge 16xlarge 24xlarge 32xlarge 48xlarge 96xlarge",
    "m8i-flex": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge",
    "p2": "xlarge 8xlarge 16xlarge",
    "p3": "2xlarge 8xlarge 16xlarge",
    "p3dn": "24xlarge",
    "p4d": "24xlarge",
    "p4de": "24xlarge",
    "p5": "48xlarge 4xlarge",
    "p5e": "48xlarge",
    "p5en": "48xlarge",
    "p6-b200": "48xlarge",
    "p6-b300": "48xlarge",
    "p6e-gb200": "36xlarge",
    "r5": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge",
    "r5d": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge",
    "r6i": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge",
    "r7i": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge",
    "r8i": "large xlarge 2xlarge 4xlarge 8xlarge "
    "12xlarge 16xlarge 24xlarge 32xlarge 48xlarge 96xlarge",
    "r8i-flex": "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge",
    "t3": "medium large xlarge 2xlarge",
    "trn1": "2xlarge 32xlarge",
    "trn1n": "32xlarge",
    "trn2": "48xlarge",
}
TYPES: Final = frozenset(
    f"ml.{family}.{size}" for family, sizes in _SIZES.items() for size in sizes.split()
)
