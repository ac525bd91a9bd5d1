"""Time 100,000 (job, device, batch) estimates on one core.

PYTHONPATH=. python -m advisor.lab.speed.device_speed
"""

import time

from advisor.machines.devices import accelerator_devices, device_parameters
from advisor.planners.core import Operator, Operators, Work
from advisor.planners.step.device import step_time

OPERATORS = 60  # groups of operators in a job, about what a profiled transformer has
BATCHES = 100


def main() -> None:
    operators = Operators.of(
        Operator(
            name=f"op{i}", kind="matmul" if i % 3 == 0 else "elementwise",
            phase=("forward", "backward")[i % 2], count=10, flop=1e10 * (i + 1),
            bytes=1e8 * (OPERATORS - i), fixed_bytes=1e6,
        )
        for i in range(OPERATORS)
    )  # fmt: skip
    work = Work(
        operators=operators, micro_batch=8, parameters=10**8, trainable_parameters=10**8,
        parameter_bytes=4e8, optimizer_state_bytes=8e8, saved_bytes_per_sample=1e7,
    )  # fmt: skip
    devices = (list(accelerator_devices().values()) * 7)[:1000]
    parameters = device_parameters()
    start = time.process_time()
    columns = step_time(work, devices, range(1, BATCHES + 1), parameters)
    spent = time.process_time() - start
    print(f"{columns.micro_batch_s.size} estimates in {spent:.2f} s of one core")


if __name__ == "__main__":
    main()
