"""Steps of a run in Weights & Biases: python3 wandb_steps.py run.yaml"""
import sys

import roundpipe_c as rp
import wandb

with wandb.init(project="roundpipe") as board:
    result = rp.train(sys.argv[1], on_step=lambda line: board.log(line, step=line["step"]))
    board.summary.update(result["measured"])
