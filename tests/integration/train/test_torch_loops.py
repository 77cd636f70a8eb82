"""Loops with optimizers of torch on flat ranges, the sampler, and configs of DeepSpeed."""
import json
import signal

import pytest
from lib.torch_ranks import PATIENCE_S
from lib.wire import until

pytestmark = [pytest.mark.timeout(300), pytest.mark.plain]


def assert_close(found, expected, tolerance=2e-6):
    for one, other in zip(found, expected, strict=True):
        assert abs(one - other) <= tolerance, (found, expected)


# --- Flat ranges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n, async_op", ((1, False), (2, False), (3, True)))
def test_a_flat_range_with_an_optimizer_of_torch_has_the_curve_of_one_process(host, module_daemon, n, async_op):
    results = host.play(module_daemon, "loops.flat_curve", n, steps=8, optimizer="AdamW", async_op=async_op)
    (single,) = host.play(module_daemon, "single", steps=8)
    assert_close([sum(losses) / n for losses in zip(*(found["losses"] for found in results))], single)
    assert len({found["bits"] for found in results}) == 1


def test_flat_2_parameters_and_buffers_are_views_that_move_between_ranks(host, module_daemon):
    for rank, found in enumerate(host.play(module_daemon, "loops.flat_views", 2)):
        assert found["outside"] == found["others"] == [] and found["ties"], found
        assert found["weight"] == [4.0] and ["torch.bfloat16", *[4.0] * 5] in found["mean"]
        assert ["torch.float64", *[[3.0, 5.0][rank]] * 4] in found["mean"], "frozen parameters are not averaged"
        assert all(found["seen"])
        assert found["replaced"].startswith("Error: calls: no view of the flat range any more"), found
        assert found["buffers"]["table"] == [1, 1, 1] and found["buffers"]["calls"] == [1] and found["frozen"] == [5.0] * 4
        assert found["no rank"] == "ValueError: there is no rank 2: the mesh has 2 ranks"
        assert "cannot be copied or pickled" in found["pickled"]


def test_gradients_are_averaged_in_place_by_weight_and_clipped_by_torch(host, module_daemon):
    results = host.play(module_daemon, "loops.flat_gradients", 2)
    (expected,) = host.play(module_daemon, "loops.gradients_of_one_process")
    for found in results:
        assert found["views"] == [True, True]
        for name, values in expected["accumulated"].items():
            assert_close(found["accumulated"][name], values)
        assert abs(found["norm"] - expected["norm"]) < 1e-5 and abs(found["clipped"] - 0.25) < 1e-5
        assert found["weighted"] == 2.0 and found["unused"], "a rank of weight 0 does not count, not even its NaN"
        assert found["weightless"].startswith("ValueError: the weights of all ranks are 0")
        assert found["negative"].startswith("ValueError: weight is -1") and "create_graph=True" in found["graph"]


@pytest.mark.parametrize("kind", ("meta", "none"))
def test_a_rank_without_a_template_takes_layout_and_values_from_the_range(host, module_daemon, kind):
    first, second = host.play(module_daemon, "loops.flat_without_template", 2, kind=kind)
    for found in (first, second):
        no_source, no_mean = found["early"]
        assert no_source.startswith("ValueError: rank 1 has no values to give") and no_source.endswith("with values: 0")
        assert no_mean.startswith("NotPublished: rank 1 has no values yet") and found["same"]
    assert first["values"] == second["values"] and list(first["values"]) == ["embed.weight", "head.weight"]
    assert second["tied"] if kind == "meta" else "this rank has no module" in second["gradients"]


def test_tickets_are_done_in_the_order_of_the_calls(host, module_daemon):
    for found in host.play(module_daemon, "loops.flat_tickets", 3):
        assert found["done"] == [True] * 3 and found["values"] == [2.0], found
        assert 2 << 20 <= found["range"] < (2 << 20) + 256  # parameters and gradients, once


@pytest.mark.plain
def test_flat_5_no_rank_holds_the_model_twice(host, module_daemon):
    giver, receiver = host.play(module_daemon, "loops.flat_memory", 2)
    assert giver["values"] == receiver["values"] == [1, 2, 3, 4]
    assert giver["grown"] < 1.3 * giver["tensor"] and receiver["grown"] < 0.3 * giver["tensor"], (giver, receiver)
    assert receiver["received"] < 4.3 * giver["tensor"], receiver


def test_flat_3_each_way_to_lose_a_view_is_named(host, module_daemon):
    (found,) = host.play(module_daemon, "loops.flat_lost")
    first = {"assign": ("inner.weight", "its memory is another"), "bfloat16": ("inner.weight", "it is torch.bfloat16"),
             "data": ("block.linear1.weight", "its memory is another"), "moved": ("head.bias", "it begins at byte "),
             "untied": ("head.bias", "it is another tensor over the same memory"),
             "gone": ("head.bias", "the module has no 'bias'")}
    for way, (name, why) in first.items():
        for said in found[way]:
            assert said.startswith(f"Error: {name}: no view of the flat range any more: {why}"), (way, said)


def test_what_cannot_be_flat_is_refused_by_name(host, module_daemon):
    (found,) = host.play(module_daemon, "loops.flat_refusals")
    for said, call in zip(found["half"], ("average_params()", "average_grads()")):
        assert said.startswith(f"Error: head.weight (F16): {call} is for parameters in float32 and bfloat16")
    assert "inner.weight and head.weight share a part of their memory" in found["overlap"]
    assert found["half meta"].startswith("ValueError: inner.weight, inner.bias, ")
    assert found["empty"] == "ValueError: ReLU has no parameters to train"
    assert found["no module"].startswith("ValueError: no rank has a module")
    (said,) = host.play(module_daemon, "loops.flat_in_job")
    assert said.startswith("ValueError: inner.weight, inner.bias, ") and "in the memory of a job" in said


def test_flat_6_another_layout_is_refused_on_all_ranks_before_anything_moves(host, module_daemon):
    first, second = host.play(module_daemon, "loops.flat_different", 2, job="different")
    difference = "1.weight (param, F32 [3, 3]) is 1.weight (param, F32 [2, 3]) on rank 0"
    assert first["refused"] == f"LayoutMismatch: the ranks have different modules: rank 1: {difference}"
    assert second["refused"] == f"LayoutMismatch: the ranks have different modules: {difference}"
    assert first["is untouched"] and second["is untouched"]


def test_a_death_ends_the_calls_of_the_others_and_the_next_start_meets_again(host, module_daemon):
    ranks = host.launch(module_daemon, "loops.flat_dies", 2, job="d", dies=True)
    assert ranks[1].wait() == -signal.SIGKILL
    first, second = ranks[0].value()
    assert first.startswith("RankDied: rank 1 ") and "an earlier collective" in second
    assert host.play(module_daemon, "loops.flat_dies", 2, job="d", dies=False) == [[None], [None]]


def test_ranks_meet_anew_where_one_was_killed_while_it_waited(host, module_daemon):
    killed = host.start(module_daemon, "loops.flat_waits", 0, 2, job="m")
    until(lambda: "opens" in killed.log and present(module_daemon, "m"), lambda: killed.log, PATIENCE_S)
    killed.end()
    assert host.play(module_daemon, "loops.flat_dies", 2, job="m", dies=False) == [[None], [None]]


def present(daemon, name):
    rows = json.loads(daemon.ctl("ls", "--json").stdout)["jobs"]
    return [row for row in rows if row["name"] == name and row["size"]]


def test_workers_of_a_data_loader_are_forked_after_the_ranges_are_mapped(host, module_daemon):
    results = host.play(module_daemon, "loops.flat_with_workers", 3)
    taken = [sample for found in results for samples, weight, _ in found for sample in samples[:weight]]
    assert sorted(taken) == list(range(13))
    assert [position for _, _, position in results[0]] == [6, 12, 13]
    assert [[weight for _, weight, _ in found] for found in results] == [[2, 2, 1], [2, 2, 0], [2, 2, 0]]


# --- The sampler ----------------------------------------------------------------------------------


def test_each_sample_comes_once_an_epoch_in_as_many_batches_on_each_rank(host, module_daemon):
    cases = [{"n": n, "n_samples": n_samples, "batch_size": size, "shuffle": shuffle, "drop_last": drop_last}
             for n in (1, 2, 3, 4) for n_samples in (1, 2, 7, 13, 24) for size in (1, 2, 3) for shuffle in (False, True)
             for drop_last in (False, True)]
    (results,) = host.play(module_daemon, "loops.sampled", cases=cases)
    for case, epochs in zip(cases, results, strict=True):
        orders = [check_epoch(case, ranks) for ranks in epochs]
        if case["n_samples"] >= 13 and not case["drop_last"]:
            assert (orders[0] == orders[1]) == (not case["shuffle"]), case
            assert case["shuffle"] or orders[0] == list(range(case["n_samples"])), case


def check_epoch(case, ranks):
    """The samples of all ranks, in the order of the epoch."""
    assert len({len(batches) for batches in ranks}) == 1, (case, ranks)
    n, position, order = case["n"], 0, []
    for column in zip(*ranks):
        own = [samples[:weight] for samples, weight, _, _ in column]
        assert all(1 <= len(samples) <= case["batch_size"] for samples, _, _, _ in column), (case, column)
        assert all(len(samples) == max(1, weight) for samples, weight, _, _ in column), (case, column)
        (of_all,) = {of_all for _, _, of_all, _ in column}
        assert sum(map(len, own)) == of_all, (case, column)
        position += of_all
        assert {behind for _, _, _, behind in column} == {position}, (case, column)
        order += [own[i % n][i // n] for i in range(of_all)]
    whole = case["n_samples"] // (n * case["batch_size"]) * n * case["batch_size"]
    assert len(order) == len(set(order)) == (whole if case["drop_last"] else case["n_samples"]), (case, order)
    return order


@pytest.mark.parametrize("n, then", ((1, 3), (2, 2), (3, 1), (4, 3)))
def test_another_number_of_ranks_continues_with_the_samples_that_are_left(host, module_daemon, n, then):
    (results,) = host.play(module_daemon, "loops.resampled", ranks=n, then=then)
    for before, rest, following in results:
        def own(ranks):
            return [sample for batches in ranks for samples, weight, _, _ in batches for sample in samples[:weight]]

        assert sorted(own(before) + own(rest)) == list(range(23)) == sorted(own(following))


def test_the_order_is_that_of_torchs_sampler_where_that_repeats_nothing(host, module_daemon):
    (found,) = host.play(module_daemon, "loops.as_torch_samples")
    assert found[0] == found[1]


def test_loops_leave_the_generator_and_seed_workers_by_epoch_and_rank(host, module_daemon):
    """A program that is started again in the middle of an epoch begins one more loop than the one that was killed."""
    ((seeds, is_left),) = host.play(module_daemon, "loops.worker_seeds")
    assert is_left and seeds[:4] == seeds[4:] and len(set(seeds)) == 4, seeds


def test_a_sampler_refuses_what_it_cannot_divide(host, module_daemon):
    (found,) = host.play(module_daemon, "loops.sampler_refusals")
    for key in ("plain", "weight"):
        assert "iterate over sampler.batches(loader)" in found[key], found
    assert found["other"].startswith("ValueError: batches() is for a DataLoader")
    assert found["length"].startswith("ValueError: the state has n_samples 6, and this sampler 5")
    assert found["seed"].startswith("ValueError: the state has seed 1, and this sampler 0")
    assert found["endless"].startswith("TypeError: Endless has no len()") and "Numbers is empty" in found["empty"]
    assert "has no dimension 'dp'" in found["dims"]
    assert found["same"] == [[0, 2], [0, 2], [1, 3], [1, 3]]


def samples_in(folder, job):
    """Epoch and number of each sample, by the files of the steps."""
    return sorted(tuple(pair) for file in folder.glob(f"{job}-*") for pair in json.loads(file.read_text()))


def test_each_sample_comes_once_an_epoch_over_kills_and_another_number_of_ranks(host, module_daemon, tmp_path):
    every = [(epoch, sample) for epoch in (0, 1) for sample in range(29)]
    given = {"job": "k", "log": str(tmp_path)}
    ranks = host.launch(module_daemon, "loops.sampled_training", 2, dies=[1, 4], **given)
    assert ranks[1].wait() == -signal.SIGKILL
    ranks[1] = host.start(module_daemon, "loops.sampled_training", 1, 2, dies=[1, 7], **given)  # the last step of epoch 0
    assert ranks[1].wait() == -signal.SIGKILL
    ranks[1] = host.start(module_daemon, "loops.sampled_training", 1, 2, **given)
    cursors = [rank.value() for rank in ranks]
    assert samples_in(tmp_path, "k") == every and cursors[0] == cursors[1]
    assert cursors[0] == {"epoch": 1, "position": 29, "n_samples": 29, "seed": 3, "shuffle": True}
    first, _ = host.play(module_daemon, "loops.sampled_training", 2, job="a", log=str(tmp_path), most=3)
    host.play(module_daemon, "loops.sampled_training", 3, job="b", log=str(tmp_path), start=first)
    assert sorted(samples_in(tmp_path, "a") + samples_in(tmp_path, "b")) == every


# --- Configs of DeepSpeed -------------------------------------------------------------------------

ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
BATCHES = {  # train_batch_size, micro-batch, accumulation, ranks: all three
    (32, None, None, 4): (32, 8, 1), (None, 4, None, 2): (8, 4, 1), (32, 4, None, 2): (32, 4, 4),
    (32, None, 4, 2): (32, 4, 4), (None, 4, 3, 2): (24, 4, 3), (24, 4, 3, 2): (24, 4, 3),
    (33, 4, 2, 4): "train_batch_size 33 is not train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 2 x 4 ranks = 32",
    (33, None, None, 4): "train_batch_size 33 is not train_micro_batch_size_per_gpu 8 x gradient_accumulation_steps 1 x 4 "
                         "ranks = 32",
    (30, 4, None, 2): "train_batch_size 30 is not train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 3 x 2 ranks "
                      "= 24",
    (3, None, None, 4): "train_batch_size 3 is not train_micro_batch_size_per_gpu 0",
    (-8, 4, None, 2): "train_batch_size -8 is not ", (None, None, 4, 2): "the config has neither train_batch_size nor"}
NAMES = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def test_the_batch_arithmetic_of_a_config_is_deepspeeds(host, module_daemon):
    given = [(ADAMW | {name: value for name, value in zip(NAMES, case) if value is not None}, case[3]) for case in BATCHES]
    (results,) = host.play(module_daemon, "loops.configs", given=given)
    for case, found, expected in zip(BATCHES, results, BATCHES.values(), strict=True):
        if isinstance(expected, str):
            assert isinstance(found, str) and found.startswith(expected), (case, found)
        else:
            assert (found["train_batch"], found["micro_batch"], found["accumulation"]) == expected, (case, found)


MAPPED = [  # config, settings
    ({}, {"optimizer": "AdamW", "arguments": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
          "strategy": "replicated", "form": "two-phase", "max_norm": 1.0, "overlap": False, "precision": None}),
    ({"gradient_clipping": 0, "zero_optimization": {"stage": 1}}, {"strategy": "zero1", "form": "auto", "max_norm": None}),
    ({"zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8, "overlap_comm": True, "contiguous_gradients": True,
                            "offload_optimizer": {"device": "none"}}, "gradient_clipping": 0.0},
     {"bucket_elements": 500000000, "overlap": True, "form": "two-phase", "max_norm": None}),
    ({"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e5}, "gradient_clipping": 0},
     {"strategy": "zero2", "form": "two-phase", "bucket_elements": 500000, "overlap": True, "units": None}),
    ({"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False}},
     {"strategy": "zero3", "units": 100000, "prefetch": True}),
    ({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}},
     {"strategy": "zero3", "units": 1, "prefetch": False}),
    ({"optimizer": {"type": "Adam", "params": {"lr": 0.1}}}, {"optimizer": "AdamW"}),
    ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False, "weight_decay": 0.2}}}, {"optimizer": "Adam"}),
    ({"optimizer": {"type": "adamw", "params": {"torch_adam": True, "bias_correction": True}}},
     {"arguments": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}}),
    ({"optimizer": {"type": "SGD", "params": {"lr": 1, "momentum": 0.9, "nesterov": True}}},
     {"optimizer": "SGD", "arguments": {"lr": 1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": True}}),
    ({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_num_steps": 3}}},
     {"scheduler": "WarmupDecayLR", "schedule": {"warmup_min_lr": 0.0, "warmup_max_lr": 0.001, "warmup_num_steps": 3,
                                                 "warmup_type": "log", "total_num_steps": 9}}),
    ({"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "auto_cast": True}, "gradient_clipping": 0},
     {"form": "two-phase", "precision": {"param": "float16", "reduce": None, "cast_inputs": True, "scaler": {
         "init_scale": 4096.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1000}}}),
    ({"fp16": {"enabled": True, "loss_scale": 128}},
     {"precision": {"param": "float16", "reduce": None, "cast_inputs": False, "scaler": {
         "init_scale": 128.0, "growth_factor": 1.0, "backoff_factor": 1.0, "growth_interval": 1}}}),
    ({"bf16": {"enabled": True, "check_grad_overflow": False}, "data_types": {"grad_accum_dtype": "fp32"}},
     {"precision": {"param": "bfloat16", "reduce": "float32", "cast_inputs": False, "scaler": None}}),
    ({"fp16": {"enabled": False, "hysteresis": 2}, "steps_per_print": 10, "wandb": {"enabled": True},
      "wall_clock_breakdown": True, "dataloader_drop_last": True}, {"precision": None, "drop_last": True}),
]
REFUSED = [  # config, start of the sentence
    ({"train_batch_size": float("inf")}, "train_batch_size is inf, and must be of type int"),
    ({"fp16": {"enabled": True, "hysteresis": 2}}, "fp16.hysteresis is 2, and weightd.train has 1 alone"),
    ({"fp16": {"enabled": True, "min_loss_scale": 1}}, "fp16.min_loss_scale has no counterpart in weightd.train"),
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "fp16.enabled and bf16.enabled are both true"),
    ({"fp16": {"enabled": "auto"}}, 'fp16.enabled is "auto", which the Trainer of transformers fills in'),
    ({"data_types": {"grad_accum_dtype": "bf16"}}, "data_types.grad_accum_dtype is 'bf16', and parameters are float32"),
    ({"zero_optimization": {"stage": 2, "overlap_comm": False}}, "zero_optimization.overlap_comm is false, and gradients of"),
    ({"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}}, "zero_optimization.reduce_bucket_size: gradients of stage 3"),
    ({"zero_optimization": {"stage": 2, "stage3_prefetch_bucket_size": 0}},
     "zero_optimization.stage3_prefetch_bucket_size has no counterpart"),
    ({"zero_optimization": {"stage": 3, "stage3_max_live_parameters": 1e9}},
     "zero_optimization.stage3_max_live_parameters has no counterpart"),
    ({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": -1}},
     "zero_optimization.stage3_param_persistence_threshold is -1"),
    ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage is 4; there are 0 to 3"),
    ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
     'zero_optimization.offload_param.device is "cpu", and weightd.train has "none" alone'),
    ({"zero_optimization": {"stage": 1, "allgather_bucket_size": 5e8}},
     "zero_optimization.allgather_bucket_size has no counterpart"),
    ({"zero_optimization": {"contiguous_gradients": False}}, "zero_optimization.contiguous_gradients is false"),
    ({"zero_optimization": {"contiguous_gradients": 1}}, "zero_optimization.contiguous_gradients is 1, and"),
    ({"zero_optimization": True}, "zero_optimization is True, and must be a dict"),
    ({"optimizer": {"type": "Lamb", "params": {}}}, "optimizer.type is 'Lamb'; weightd.train has AdamW, Adam and SGD"),
    ({"optimizer": None}, "optimizer.type is ''"),
    ({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}}}, "optimizer.params.max_grad_norm: DeepSpeed refuses"),
    ({"optimizer": {"type": "AdamW", "params": {"amsgrad": True}}}, "optimizer.params.amsgrad is true, and weightd.train has"),
    ({"optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.9]}}}, "optimizer.params.betas has no counterpart"),
    ({"optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}}, "optimizer.params.betas is [0.9], and must be two numbers"),
    ({"optimizer": {"type": "AdamW", "params": {"lr": "fast"}}}, "optimizer.params.lr is 'fast', and must be of type int or"),
    ({"scheduler": {"type": "OneCycle"}}, "scheduler.type is 'OneCycle'; initialize() has WarmupLR and WarmupDecayLR"),
    ({"scheduler": {"type": "WarmupDecayLR"}}, "scheduler.params.total_num_steps is missing"),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cosine"}}}, "scheduler.params.warmup_type is 'cosine'"),
    ({"gradient_clipping": -1}, "gradient_clipping is -1"), ({"train_batch_size": True}, "train_batch_size is True, and must"),
    ({"train_batch_size": 8.5}, "train_batch_size is 8.5, and must be of type int"),
    ({"curriculum_learning": {}}, "curriculum_learning has no counterpart in weightd.train; weightd-train(7) lists")]


def test_keys_of_a_config_have_their_counterparts_or_are_refused_by_path(host, module_daemon):
    base = ADAMW | {"train_batch_size": 8}
    (results,) = host.play(module_daemon, "loops.configs", given=[(base | config, 2) for config, _ in MAPPED + REFUSED])
    for (config, expected), found in zip(MAPPED, results):
        assert {key: found[key] for key in expected} == expected, (config, found)
    for (config, expected), found in zip(REFUSED, results[len(MAPPED):], strict=True):
        assert isinstance(found, str) and found.startswith(expected), (config, found)


def test_the_file_of_a_config_is_read_and_named(host, module_daemon, tmp_path):
    files = {"config.json": json.dumps(ADAMW | {"train_batch_size": 4}), "broken.json": '{"train_batch_size": 4,,}',
             "double.json": '{"train_batch_size": 4, "train_batch_size": 8}'}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (found,) = host.play(module_daemon, "loops.configs", given=[(str(tmp_path / name), 2) for name in files])
    assert found[0]["micro_batch"] == 2 and found[1].startswith(f"{tmp_path}/broken.json: no JSON: ")
    assert found[2] == "the config has the key 'train_batch_size' twice in one dict; remove one"


def test_schedules_have_the_rates_of_deepspeed(host, module_daemon):
    """As release 0.19.8 printed them for a group with lr 0.5."""
    given = {"{}": [0.0, 0.0, 0.21533827903669653, 0.3413030972429927, 0.43067655807339306, 0.5, 0.5, 0.5, 0.5, 0.5],
             "linear": [0.1, 0.1, 0.125, 0.15, 0.175, 0.2, 0.2, 0.2, 0.2, 0.2],
             "decay": [0.0, 0.0, 0.0063092975357145736, 0.01, 0.01, 0.008, 0.006, 0.004, 0.002, 0.0],
             "short": [0.001, 0.001, 0.0055, 0.01, 0.0085, 0.007, 0.0055, 0.004, 0.0025, 0.001]}
    schedules = [{"warmup_num_steps": 5},
                 {"warmup_min_lr": 0.1, "warmup_max_lr": 0.2, "warmup_num_steps": 4, "warmup_type": "linear"},
                 {"total_num_steps": 8, "warmup_num_steps": 3, "warmup_max_lr": 0.01},
                 {"total_num_steps": 8, "warmup_num_steps": 1, "warmup_type": "linear", "warmup_max_lr": 0.01,
                  "warmup_min_lr": 0.001}]
    (results,) = host.play(module_daemon, "loops.rates", schedules=schedules)
    for found, expected in zip(results, given.values(), strict=True):
        assert_close(found, expected, 1e-15)


@pytest.mark.parametrize("n, more", ((2, {}), (3, {"zero_optimization": {"stage": 1}}), (3, {"zero_optimization": {"stage": 2}}),
                                     (2, {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 200}})))
def test_an_engine_trains_as_torch_does_with_an_uneven_last_batch(host, module_daemon, tmp_path, n, more):
    epochs = 2
    results = host.play(module_daemon, "loops.engine_run", n, epochs=epochs, more=more, path=str(tmp_path / "config.json"))
    (expected,) = host.play(module_daemon, "loops.engine_of_one_process", batch_size=2 * n, epochs=epochs,
                              rates=results[0]["rates"])
    n_micro = epochs * -(-35 // (2 * n))
    for found in results:
        assert found["boundaries"] == [(i + 1) % 3 == 0 for i in range(n_micro)] and found["steps"] == n_micro // 3
        assert found["sizes"] == [6 * n, 2, 3] and found["scheduler"] == "WarmupLR" and found["mode"] is False
        assert found["rates"][:2] == [0.0, 0.0] and 0 < found["rates"][2] < found["rates"][3]
        assert_close(found["norms"], expected["norms"], 2e-6)
        for name, values in expected["values"].items():
            assert_close(found["values"][name], values, 5e-6)
    assert len({found["bits"] for found in results}) == 1


def test_a_killed_rank_of_an_engine_goes_on_with_the_same_bits(host, module_daemon):
    """In a step, in its last micro-batch, and in another epoch."""
    expected = host.play(module_daemon, "loops.engine_run", 2, epochs=2, job="whole")
    survivor, *killed = host.launch(module_daemon, "loops.engine_run", 2, epochs=2, job="engine", dies=[1, 4])
    for at in (8, 12, None):
        assert killed[-1].wait() == -signal.SIGKILL
        killed.append(host.start(module_daemon, "loops.engine_run", 1, 2, epochs=2, job="engine", dies=at and [1, at]))
    survivor, again = survivor.value(), killed[-1].value()
    assert again["first"] == 4 and again["epoch"] == 1
    assert again["bits"] == survivor["bits"] == expected[0]["bits"]
    assert again["rates"] == expected[1]["rates"][4:] and again["norms"] == expected[1]["norms"][4:]


def test_an_engine_continues_behind_its_checkpoint_with_any_number_of_ranks(host, module_daemon, tmp_path):
    folder = str(tmp_path / "checkpoints")
    saved = host.play(module_daemon, "loops.engine_saved", 2, folder=folder)
    again = host.play(module_daemon, "loops.engine_saved", 2, folder=folder, load=True)
    others = host.play(module_daemon, "loops.engine_saved", 3, folder=folder, load=True, n_steps=7)
    for found, expected in zip(again, saved):
        assert found["loaded"] == [folder, {}, 4] and found["tag"].startswith("ValueError: tag='best'")
        assert found["bits"] == expected["bits"] and found["rates"] == expected["rates"]
        assert found["samples"] == expected["samples"]

    def left(results):
        return sorted(sample for found in results for epoch, samples in found["samples"] for sample in samples if epoch == 0)

    assert left(others) == left(saved) and len(left(saved)) == 29 - 4 * 4
    assert others[0]["rates"] == saved[0]["rates"][:3]


def test_an_engine_counts_a_skipped_step_of_a_checkpoint_in_no_schedule(host, module_daemon, tmp_path):
    (found,) = host.play(module_daemon, "loops.engine_saved_skipped", folder=str(tmp_path))
    (saved, loaded), error = found
    assert saved == loaded and saved[0] == 3 and saved[2] is True
    assert error.startswith("ValueError: the state has n_samples 8, and this sampler 12"), "only the samples begin anew"


FP16 = {"fp16": {"enabled": True, "auto_cast": True, "initial_scale_power": 10, "loss_scale_window": 3}}
BF16 = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 1}}


@pytest.mark.parametrize("dtype, more, scale", (("float16", FP16, 1024.0), ("bfloat16", BF16, 1.0)))
def test_an_engine_in_16_bits_skips_the_step_of_an_infinite_loss_on_all_ranks(host, module_daemon, dtype, more, scale):
    """A rank that is killed in the next step resumes scale, schedule and samples."""
    given = {"epochs": 2, "more": more, "spoils": [1, 10]}
    expected = host.play(module_daemon, "loops.engine_run", 2, job=f"whole-{dtype}", **given)
    exact, _ = host.play(module_daemon, "loops.engine_run", 2, epochs=1)
    for found in expected:
        assert found["types"] == [f"torch.{dtype}"] and found["scale"] == scale
        assert found["skipped"] == [step == 3 for step in range(6)] and found["rates"][3] == found["rates"][4]
        assert found["bits"] == expected[0]["bits"]
    assert_close(expected[0]["norms"][:2], exact["norms"][:2], 0.03)
    ranks = host.launch(module_daemon, "loops.engine_run", 2, job=f"dies-{dtype}", dies=[1, 13], **given)
    assert ranks[1].wait() == -signal.SIGKILL
    ranks[1] = host.start(module_daemon, "loops.engine_run", 1, 2, job=f"dies-{dtype}", **given)
    survivor, again = (rank.value() for rank in ranks)
    assert again["first"] == 4 and again["rates"] == expected[1]["rates"][4:]
    assert again["scale"] == (scale if dtype == "bfloat16" else 1024.0)
    assert survivor["bits"] == again["bits"] == expected[0]["bits"]


def test_a_step_of_an_engine_whose_loss_is_nan_counts(host, module_daemon):
    for found in host.play(module_daemon, "loops.engine_nan", 2):
        said = [said and said.partition(":")[0] for said, *_ in found]
        assert said == [None, "NotANumber", None, None], "zero_grad() drops a loss"
        assert [row[1:3] for row in found] == [[1, 1], [2, 2], [3, 3], [4, 4]]
        assert found[0][3] == 0.0 < found[1][3] < found[2][3]


def test_an_engine_takes_groups_and_a_scheduler_of_torch(host, module_daemon):
    (found,) = host.play(module_daemon, "loops.engine_arguments")
    assert [group["weight_decay"] for group in found["groups"]] == [0.3, 0.0] and found["lr"] == [0.05, 0.25]
    assert found["loader"] is None and found["norm"] is not None and found["returned"] and found["same"]
    assert found["two"].startswith("ValueError: the config has a scheduler, too")
    assert found["object"].startswith("ValueError: lr_scheduler must be a function of the optimizer")
