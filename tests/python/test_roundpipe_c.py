"""The Python package against the program: the same answers, errors as exceptions, runs that Ctrl-C ends well.

Needs ROUNDPIPE, the program, and PYTHONPATH; pandas for what is a frame (skipped without).
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import roundpipe_c as rp
from roundpipe_c import B, F

PROGRAM = os.environ["ROUNDPIPE"]
TINY = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 64,
        "max_position_embeddings": 64}


def by_command(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)


def gpipe(gpus, micro_batches):
    for g in range(gpus):
        yield [F(g, m) for m in range(micro_batches)] + [B(g, m) for m in range(micro_batches)]


def deadlock(gpus, micro_batches):
    for g in range(gpus):
        yield [B(g, m) for m in range(micro_batches)] + [F(g, m) for m in range(micro_batches)]


class Answers(unittest.TestCase):
    def test_plan_is_what_the_command_prints(self):
        keys = ["qwen3-1.7b", "--gpu=rtx4090", "--gpus=1", "--host-memory=64", "--json"]
        self.assertEqual(rp.plan("qwen3-1.7b", gpu="rtx4090", gpus=1, host_memory=64),
                         json.loads(by_command("plan", *keys).stdout))

    def test_a_plan_that_does_not_fit_is_an_answer(self):
        self.assertTrue(rp.plan("qwen3-8b", gpu="rtx3090", gpus=1, host_memory=32)["remedies"])

    def test_simulate_is_what_the_command_prints(self):
        keys = ["qwen3-1.7b", "--schedule=1f1b", "--gpus=4", "--micro-batches=8", "--json"]
        self.assertEqual(rp.simulate("qwen3-1.7b", schedule="1f1b", gpus=4, micro_batches=8),
                         json.loads(by_command("simulate", *keys).stdout))

    def test_a_function_is_a_schedule(self):
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder) / "gpipe.svg"
            own = rp.simulate("qwen3-1.7b", gpipe, gpus=4, micro_batches=8, stages=[7] * 4, picture=picture)
            self.assertIn("<svg", picture.read_text())
        given = rp.simulate("qwen3-1.7b", "gpipe", gpus=4, micro_batches=8, stages=[7] * 4)
        self.assertEqual(own["makespan_ms"], given["makespan_ms"])
        rp.verify("qwen3-1.7b", gpipe, gpus=4, micro_batches=8)

    def test_a_schedule_that_waits_forever_says_where(self):
        with self.assertRaisesRegex(rp.RoundPipeError, r"B0\.0|B1\.0|waits"):
            rp.simulate("qwen3-1.7b", deadlock, gpus=2, micro_batches=2)
        with self.assertRaisesRegex(ValueError, "actions of 3 GPUs"):
            rp.simulate("qwen3-1.7b", lambda n, m: [[]], gpus=3, micro_batches=2)

    def test_errors_have_the_message_and_the_code(self):
        with self.assertRaises(rp.UsageError) as caught:
            rp.plan("qwen3-8b", gpu="rtx4091", gpus=4)
        said = by_command("plan", "qwen3-8b", "--gpu=rtx4091", "--gpus=4")
        self.assertEqual((str(caught.exception), caught.exception.code), (said.stderr.strip(), 2))
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaises(rp.RoundPipeError) as caught:
            rp.evaluate("/nowhere", "/nothing.jsonl")
        self.assertEqual(caught.exception.code, 1)

    def test_compare_has_rows(self):
        answer = rp.compare("qwen3-1.7b", schedules=["1f1b", "roundpipe"], gpus=4, micro_batches=8)
        said = by_command("compare", "qwen3-1.7b", "--schedules=1f1b,roundpipe", "--gpus=4", "--micro-batches=8",
                          "--json")
        self.assertEqual(answer, json.loads(said.stdout))

    def test_a_sweep_is_a_frame(self):
        try:
            import pandas  # noqa: F401
        except ImportError:
            self.skipTest("no pandas")
        frame = rp.sweep("qwen3-1.7b", gpus="2,4", schedule="gpipe,1f1b", micro_batches=8)
        self.assertEqual(len(frame), 4)

    def test_has_a_version(self):
        self.assertIn(rp.__version__, by_command("--version").stdout)


NOTEBOOKS = Path(__file__).parents[2] / "examples" / "python"


class Notebooks(unittest.TestCase):
    """All cells but those that only show something."""

    def run_cells(self, name, check=lambda names: None):
        try:
            import pandas  # noqa: F401
        except ImportError:
            self.skipTest("no pandas")
        names = {}
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                for cell in json.loads((NOTEBOOKS / name).read_text())["cells"]:
                    if cell["cell_type"] == "code" and "display" not in cell["metadata"].get("tags", []):
                        exec(compile("".join(cell["source"]), f"{name}:{cell['id']}", "exec"), names)
                names["files"] = sorted(os.listdir(folder))
                check(names)
            finally:
                os.chdir(before)
        return names

    def test_the_researcher_s(self):
        names = self.run_cells("researcher.ipynb")
        self.assertIn("eager.png", names["files"])
        self.assertLessEqual(names["own"]["bubble_ratio"], names["usual"]["bubble_ratio"] + 1e-9)
        self.assertEqual(names["table"].shape, (3, 3))
        self.assertEqual(len(names["busy"]), 4)

    def test_the_fine_tuner_s(self):
        def check(names):
            self.assertEqual(len(names["answers"]), 4)
            losses = names["run"].evaluations.eval_loss
            self.assertLess(losses.iloc[-1], losses.iloc[0])
            self.assertEqual(len(names["run"].metrics), 40)

        self.run_cells("fine-tuner.ipynb", check)


class Training(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.at = Path(self.folder.name)
        (self.at / "tiny").mkdir()
        (self.at / "tiny" / "config.json").write_text(json.dumps(TINY))
        self.spec = {"model": f"random:{self.at}/tiny", "output": f"{self.at}/run", "devices": "host:2",
                     "sequence_length": 16, "micro_batches": 2, "steps": 6, "dtype": "fp32", "seed": 3,
                     "optimizer": {"learning_rate": 1e-3}}
        self.data = [{"input_ids": [(7 * i + 3 * k) % 64 for k in range(16)]} for i in range(12)]

    def tearDown(self):
        self.folder.cleanup()

    def test_trains_what_the_command_trains(self):
        steps = []
        answer = rp.train(self.spec, steps.append, data=self.data)
        self.assertEqual([line["step"] for line in steps], [1, 2, 3, 4, 5, 6])
        self.assertEqual(answer["last_step"], 6)
        file = self.at / "run.yaml"
        file.write_text("".join(f"{k}: {v}\n" for k, v in self.spec.items() if not isinstance(v, dict))
                        + f"data: {self.at}/run.data.jsonl\noptimizer: {{learning_rate: 0.001}}\n")
        said = by_command("train", str(file), f"--set=output={self.at}/other", "--json")
        self.assertEqual(answer["loss"], json.loads(said.stdout)["loss"])
        mine, theirs = (self.at / name / "checkpoint-6" / "model.safetensors" for name in ("run", "other"))
        self.assertEqual(mine.read_bytes(), theirs.read_bytes())
        run = rp.Run(self.at / "run")
        self.assertEqual(run.best, run.checkpoints[-1])
        self.assertEqual(len(rp.generate(str(self.at / "run"), self.data[:2], max_new_tokens=3)), 2)

    def test_runs_are_frames(self):
        try:
            import pandas  # noqa: F401
        except ImportError:
            self.skipTest("no pandas")
        rp.train(self.spec, data=self.data, eval={"data": f"{self.at}/run.data.jsonl", "every": 3}, trace=f"{self.at}/t.json")
        run = rp.Run(self.at / "run")
        self.assertEqual(list(run.metrics.index), [1, 2, 3, 4, 5, 6])
        self.assertEqual(list(run.evaluations.index), [0, 3, 6])
        self.assertTrue((rp.Run.trace(self.at / "t.json")["dur"] >= 0).all())

    def test_ctrl_c_saves_and_the_run_goes_on(self):
        long = {**self.spec, "steps": 100000, "optimizer": {"schedule": "constant"}}
        seen = threading.Event()
        threading.Thread(target=lambda: seen.wait(60) and os.kill(os.getpid(), signal.SIGINT)).start()
        with self.assertRaises(KeyboardInterrupt):
            rp.train(long, lambda line: seen.set(), data=self.data)
        step = int(rp.Run(self.at / "run").best.name[11:])
        self.assertGreater(step, 0)
        steps = []
        rp.train({**long, "steps": step + 2}, steps.append, data=self.data, resume=True)
        self.assertEqual([line["step"] for line in steps], [step + 1, step + 2])

    def test_an_error_of_on_step_ends_the_run_with_a_checkpoint(self):
        def fail(line):
            raise LookupError("mine")

        with self.assertRaisesRegex(LookupError, "mine"):
            rp.train({**self.spec, "steps": 100000}, fail, data=self.data)
        self.assertTrue(rp.Run(self.at / "run").checkpoints)

    def test_bad_input_is_one_message(self):
        with self.assertRaisesRegex(rp.RoundPipeError, "stepz"):
            rp.train({**self.spec, "stepz": 3}, data=self.data)
        with self.assertRaisesRegex(ValueError, "output="):
            rp.train({"model": "x"})
        with self.assertRaises(FileNotFoundError):
            rp.Run(self.at / "nothing")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + ["-v"] + sys.argv[1:])
