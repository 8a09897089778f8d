"""Steps of a run in MLflow: python3 mlflow_steps.py run.yaml"""
import sys

import mlflow
import roundpipe_c as rp

with mlflow.start_run():
    mlflow.log_artifact(sys.argv[1])
    rp.train(sys.argv[1], on_step=lambda line: mlflow.log_metrics(
        {key: value for key, value in line.items() if isinstance(value, (int, float))}, step=int(line["step"])))
