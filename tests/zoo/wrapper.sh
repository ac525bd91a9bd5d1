#!/bin/sh
# zoo: steps=320 args="" minute=yes needs=torch
# Prepares data in one Python process and trains in a second.
set -e
here=$(cd "$(dirname "$0")" && pwd)
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
echo "preparing data"
python "$here/wrapper/prepare.py" --rows 5120 --out "$data/rows.pt"
echo "training"
python "$here/wrapper/train.py" --data "$data/rows.pt" --epochs 4
