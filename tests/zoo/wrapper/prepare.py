import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, required=True)
parser.add_argument("--out", required=True)
args = parser.parse_args()
torch.manual_seed(11)
x = torch.randn(args.rows, 40, 24)
y = x.mean(dim=(1, 2)).gt(0).long()
torch.save({"x": x, "y": y}, args.out)
print(f"wrote {args.rows} rows to {args.out}")
