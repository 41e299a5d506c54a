"""tests/peers/hf_test.py: Hugging Face Llama, against the real transformers.

An export is loaded by transformers, and its logits are those of our model; a model
that transformers made is imported, trained three steps, exported and loaded again.
How near: in FP32 every logit within 1e-4 of the largest; in BF16, where both round
the residual stream at every layer but not at the same places, within 4e-2 of the
largest, and 1e-2 on the average.
"""

import json
import pathlib
import tempfile
import unittest

import numpy
import safetensors.torch
import torch
import transformers

import programs

FP32_TOLERANCE = 1e-4
BF16_TOLERANCE_MAX = 4e-2
BF16_TOLERANCE_MEAN = 1e-2
SEQUENCES, LENGTH = 2, 24
RUN_SEQUENCES, RUN_LENGTH = 4, 32

# Tied and untied, grouped queries and one group, vocabularies that no padding
# divides, more than one theta.
MODELS = {
    "tied_grouped": dict(
        vocab_size=259, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True,
        rms_norm_eps=1e-5, max_position_embeddings=64),
    "untied_odd_vocabulary": dict(
        vocab_size=1013, hidden_size=64, intermediate_size=112, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=False,
        rms_norm_eps=1e-6, max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
}
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def make_model(name, dtype=torch.float32, seed=3):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        **MODELS[name], bos_token_id=None, eos_token_id=None, pad_token_id=None)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms that are not all one, weights that make logits of order one.
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, 0.08)
    return model.to(dtype).eval()


def load(path, dtype=torch.float32):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        path, output_loading_info=True, dtype=dtype)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info[what], f"{what}: {info[what]}"
    return model.eval()


def some_tokens(vocab, seed=5):
    return numpy.random.default_rng(seed).integers(
        0, vocab, (SEQUENCES, LENGTH), dtype=numpy.int32)


def logits_of(model, tokens):
    with torch.no_grad():
        out = model(torch.from_numpy(tokens.astype(numpy.int64)))
    return out.logits.float().numpy()


class HfTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hf-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def our_logits(self, checkpoint, compute, tokens, vocab):
        tokens.tofile(self.folder / "tokens")
        programs.run("peers_logits", checkpoint, compute, self.folder / "tokens",
                     SEQUENCES, self.folder / "logits")
        return numpy.fromfile(self.folder / "logits", numpy.float32).reshape(
            SEQUENCES, LENGTH, vocab)

    def import_hf(self, path, out, *arguments):
        return programs.ckptctl("import", path, "--from", "hf", "--out", out, *arguments)

    def export_hf(self, checkpoint, out, *arguments):
        return programs.ckptctl("export", checkpoint, "--to", "hf", "--out", out, *arguments)

    def expect_near(self, ours, theirs, tolerance_max, tolerance_mean=None):
        scale = numpy.abs(theirs).max()
        self.assertGreater(scale, 0.3, "logits too small to say anything")
        gap = numpy.abs(ours - theirs) / scale
        self.assertLess(gap.max(), tolerance_max)
        if tolerance_mean is not None:
            self.assertLess(gap.mean(), tolerance_mean)
        print(f"[gap of logits: largest {gap.max():.2e}, mean {gap.mean():.2e}] ",
              end="", flush=True)

    def expect_same_tensors(self, expected, found):
        self.assertEqual(sorted(expected), sorted(found))
        for name, tensor in expected.items():
            self.assertEqual(tensor.dtype, found[name].dtype, name)
            self.assertTrue(torch.equal(tensor, found[name]), name)

    def config_file(self, name, **model):
        """A run of three steps for the model of an import, from its own words. Each
        step takes the whole of the data."""
        self.prefix = programs.make_data(
            self.folder, model["vocab_size"], tokens=RUN_SEQUENCES * RUN_LENGTH + 1)
        text = model["toml"].replace(
            f"model.seq_len = {model['max_position_embeddings']}", f"model.seq_len = {RUN_LENGTH}")
        self.assertIn(f"model.seq_len = {RUN_LENGTH}", text)
        text += (f"batch.global_seqs = {RUN_SEQUENCES}\nbatch.micro_seqs = 1\ntrain.steps = 3\n"
                 "optim.lr = 1e-3\noptim.warmup_steps = 1\n"
                 f'data.paths = ["{self.prefix}"]\ndata.eval_fraction = 0\nnumerics.compute = "{model["compute"]}"\n')
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        return path

    def test_what_transformers_made_has_the_same_logits_here(self):
        for name in MODELS:
            for source in TYPES:
                with self.subTest(model=name, source=source):
                    model = make_model(name, TYPES[source])
                    saved = self.folder / f"{name}-{source}"
                    # In files of a few tensors each.
                    model.save_pretrained(saved, max_shard_size="100KB")
                    self.assertTrue((saved / "model.safetensors.index.json").exists())
                    run = self.folder / f"run-{name}-{source}"
                    said = self.import_hf(saved, run, "--tp", 2, "--pp", 2, "--dp", 2)
                    self.assertEqual(said["layout"], "tp2-pp2-dp2")
                    tokens = some_tokens(MODELS[name]["vocab_size"])
                    # Loaded: a cast of the model would round its rotary frequencies.
                    theirs = logits_of(load(saved), tokens)
                    self.expect_near(
                        self.our_logits(run, "f32", tokens, model.config.vocab_size),
                        theirs, FP32_TOLERANCE)

    def test_bf16_logits_are_near(self):
        for name in MODELS:
            with self.subTest(model=name):
                model = make_model(name, torch.bfloat16)
                model.save_pretrained(self.folder / name)
                run = self.folder / f"run-{name}"
                self.import_hf(self.folder / name, run)
                tokens = some_tokens(MODELS[name]["vocab_size"])
                self.expect_near(
                    self.our_logits(run, "bf16", tokens, model.config.vocab_size),
                    logits_of(load(self.folder / name, torch.bfloat16), tokens),
                    BF16_TOLERANCE_MAX, BF16_TOLERANCE_MEAN)

    def test_what_is_imported_comes_back_bit_for_bit(self):
        for name in MODELS:
            for source in TYPES:
                with self.subTest(model=name, source=source):
                    model = make_model(name, TYPES[source])
                    saved = self.folder / f"{name}-{source}"
                    model.save_pretrained(saved)
                    run, out = self.folder / f"run-{name}-{source}", self.folder / f"out-{name}-{source}"
                    self.import_hf(saved, run, "--tp", 2)
                    self.export_hf(run, out, "--dtype", source)
                    self.expect_same_tensors(
                        safetensors.torch.load_file(saved / "model.safetensors"),
                        safetensors.torch.load_file(out / "model.safetensors"))

    def test_shards_are_what_transformers_and_the_index_say(self):
        model = make_model("untied_odd_vocabulary")
        model.save_pretrained(self.folder / "saved")
        self.import_hf(self.folder / "saved", self.folder / "run")
        said = self.export_hf(self.folder / "run", self.folder / "out", "--max-shard-size", "150kB")
        index = json.loads((self.folder / "out/model.safetensors.index.json").read_text())
        files = sorted(set(index["weight_map"].values()))
        self.assertGreater(len(files), 2)
        self.assertEqual(said["files"], files + ["model.safetensors.index.json", "config.json"])
        self.assertEqual(index["metadata"]["total_size"], said["bytes"])
        found = {}
        for file in files:
            for key, tensor in safetensors.torch.load_file(self.folder / "out" / file).items():
                self.assertEqual(index["weight_map"][key], file)
                found[key] = tensor
        self.expect_same_tensors(dict(model.state_dict()), found)
        loaded = load(self.folder / "out")
        tokens = some_tokens(1013)
        self.assertTrue(numpy.array_equal(logits_of(loaded, tokens), logits_of(model, tokens)))

    def test_imported_trained_exported_and_loaded_again(self):
        for name, compute in (("tied_grouped", "bf16"), ("untied_odd_vocabulary", "f32")):
            with self.subTest(model=name, compute=compute):
                model = make_model(name)
                model.save_pretrained(self.folder / name)
                start, run = self.folder / f"start-{name}", self.folder / f"run-{name}"
                said = self.import_hf(self.folder / name, start, "--compute", compute)
                config = self.config_file(
                    name, toml=said["model"], compute=compute, **MODELS[name])
                programs.run("holdfast", "train", "--config", config, "--run", run,
                             "--init-from", start)
                metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
                self.assertEqual([line["step"] for line in metrics], [1, 2, 3])
                self.export_hf(run, self.folder / f"out-{name}")
                trained = load(self.folder / f"out-{name}")
                tokens = some_tokens(MODELS[name]["vocab_size"])
                theirs = logits_of(trained, tokens)
                self.expect_near(
                    self.our_logits(run, "f32", tokens, trained.config.vocab_size),
                    theirs, FP32_TOLERANCE)
                # It has moved, by what three steps of Adam move at most.
                moved = max(
                    (a - b).abs().max().item()
                    for a, b in zip(trained.state_dict().values(), model.state_dict().values()))
                self.assertGreater(moved, 1e-4)
                self.assertLess(moved, 5e-3)
                # The training has started from the imported weights: its first
                # batch is all of the data, in whatever order.
                gap = abs(metrics[0]["loss"] - self.loss_of(model))
                self.assertLess(gap, 1e-5 if compute == "f32" else 2e-2)

    def loss_of(self, model):
        """The mean over the data's sequences, by torch."""
        stream = numpy.fromfile(self.prefix.with_suffix(".bin"), "<u2").astype(numpy.int64)
        inputs = stream[:-1].reshape(RUN_SEQUENCES, RUN_LENGTH)
        targets = torch.from_numpy(stream[1:])
        logits = torch.from_numpy(logits_of(model, inputs)).flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, targets).item()

    def test_only_default_rotary_positions_are_taken(self):
        model = make_model("tied_grouped")
        model.save_pretrained(self.folder / "saved")
        path = self.folder / "saved/config.json"
        config = json.loads(path.read_text())
        config["rope_parameters"] = {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}
        path.write_text(json.dumps(config))
        said = programs.run("ckptctl", "import", self.folder / "saved", "--from", "hf",
                            "--out", self.folder / "run", code=78)
        self.assertIn("rope_type", said)
        self.assertFalse((self.folder / "run").exists())


if __name__ == "__main__":
    unittest.main()
