"""Ranks that torchrun starts again: the first ones never meet, and leave nothing of a group in the way of the next."""

import os
import runpy
import time
from pathlib import Path

import torch

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    torch.set_num_threads(1)
    os.write(1, f"rank {os.environ['RANK']} is {os.getpid()}\n".encode())
    while True:
        time.sleep(0.05)
runpy.run_path(str(Path(__file__).with_name("plain.py")))
