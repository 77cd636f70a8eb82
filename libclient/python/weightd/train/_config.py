"""The config of DeepSpeed, translated: keys with a counterpart, keys that are about logging, and the refusal of others."""
from __future__ import annotations

import json
import os
from typing import Any, Mapping, NamedTuple

# Keys that change what is printed or measured, and nothing else.
LOGGING = frozenset(("comet", "comms_logger", "csv_monitor", "dump_state", "flops_profiler", "log_level",
                     "memory_breakdown", "monitor_config", "steps_per_print", "tensorboard", "timers", "wandb",
                     "wall_clock_breakdown"))

# Keys with one value that describes what happens here in any case.
FIXED = {
    "managed_gradient_accumulation": True,
    "prescale_gradients": False,
    "gradient_predivide_factor": 1.0,
    "gradient_allreduce_op": "mean",
    "sparse_gradients": False,
    "disable_allgather": False,
    "communication_data_type": "fp32",  # of sums
    "zero_allow_untested_optimizer": False,
    "zero_optimization.contiguous_gradients": True,
    "zero_optimization.reduce_scatter": True,
    "zero_optimization.allgather_partitions": True,
    "zero_optimization.round_robin_gradients": False,
    "zero_optimization.ignore_unused_parameters": True,
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
    "zero_optimization.stage3_use_all_reduce_for_fetch_params": False,
    "zero_optimization.zero_hpz_partition_size": 1,
    "zero_optimization.zero_quantized_weights": False,
    "zero_optimization.zero_quantized_gradients": False,
    "zero_optimization.offload_optimizer.device": "none",
    "zero_optimization.offload_param.device": "none",
    "fp16.hysteresis": 1,
    "fp16.consecutive_hysteresis": False,
    "fp16.fp16_master_weights_and_grads": False,
    "bf16.immediate_grad_update": False,
    "bf16.bf16_master_weights_and_grads": False,
    "bf16.bf16_optimizer_states": False,
    "optimizer.params.amsgrad": False,
    "optimizer.params.bias_correction": True,
    "optimizer.params.dampening": 0,
    "optimizer.params.maximize": False,
}

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_STRATEGIES = {0: "replicated", 1: "zero1", 2: "zero2", 3: "zero3"}


class Precision(NamedTuple):
    """Arguments of weightd.train.Precision, by the names of torch's types, and of Scaler; None: no scaling."""

    param: str
    reduce: str | None
    cast_inputs: bool
    scaler: dict[str, Any] | None


class Settings(NamedTuple):
    """
    A config as the classes of weightd.train have it.

    train_batch, micro_batch, accumulation  samples of a step, samples of a rank's batch, batches of a rank in a step
    optimizer, arguments                    "AdamW", "Adam" or "SGD", and its arguments
    scheduler, schedule                     "WarmupLR", "WarmupDecayLR" or None, and its arguments
    strategy, form, bucket_elements, overlap  as of shard(); 0: its default
    units, prefetch                         likewise: modules are units from so many parameters on; None: not stage 3
    max_norm                                None: no clipping
    """

    train_batch: int
    micro_batch: int
    accumulation: int
    optimizer: str
    arguments: dict[str, Any]
    scheduler: str | None
    schedule: dict[str, Any]
    strategy: str
    form: str
    bucket_elements: int
    overlap: bool
    units: int | None
    prefetch: bool
    max_norm: float | None
    drop_last: bool
    precision: Precision | None


class _Section:
    """A dict of the config. What is not taken by the end is refused, by its path."""

    def __init__(self, path: str, given: Any):
        if not isinstance(given, Mapping):
            raise ValueError(f"{path or 'the config'} is {given!r}, and must be a dict")
        self._path, self._left = path, dict(given)

    def path(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def take(self, key: str, default: Any, kind: type | tuple[type, ...] = (int, float)) -> Any:
        """The value, of a type that JSON has. A whole number may be written as 5e8. ValueError."""
        value = self._left.pop(key, default)
        if value is default or value is None:
            return default
        if value == "auto":
            raise ValueError(f"{self.path(key)} is \"auto\", which the Trainer of transformers fills in; write the value")
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise ValueError(f"{self.path(key)} is {value!r}, and must be of type {names}")
        return value

    def section(self, key: str) -> _Section:
        return _Section(self.path(key), self._left.pop(key, None) or {})

    def close(self) -> None:
        """ValueError: keys that are left, but for those about logging and those that are as here in any case."""
        for key, value in self._left.items():
            path = self.path(key)
            if path in LOGGING:
                continue
            if path not in FIXED:
                raise ValueError(f"{path} has no counterpart in weightd.train; weightd-train(7) lists the keys that "
                                 "have one")
            if value != FIXED[path] or isinstance(value, bool) != isinstance(FIXED[path], bool):
                raise ValueError(f"{path} is {json.dumps(value, default=repr)}, and weightd.train has "
                                 f"{json.dumps(FIXED[path])} alone")


def read(config: Mapping | str | os.PathLike, n_ranks: int) -> Settings:
    """The settings of a config, which is a dict or the path of a JSON file. ValueError, by the path of the key."""
    root = _Section("", _load(config))
    micro = [root.take(key, None, int) for key in ("train_batch_size", "train_micro_batch_size_per_gpu",
                                                   "gradient_accumulation_steps")]
    sizes = batch_sizes(*micro, n_ranks)
    optimizer, arguments = _optimizer(root.section("optimizer"))
    scheduler, schedule = _scheduler(root.section("scheduler"))
    precision = _precision(root)
    max_norm = root.take("gradient_clipping", 1.0)
    if max_norm < 0:
        raise ValueError(f"gradient_clipping is {max_norm}; it must be positive, or 0 for no clipping")
    strategy, *buckets = _zero(root.section("zero_optimization"))
    drop_last = root.take("dataloader_drop_last", False, bool)
    root.close()
    is_two_phase = max_norm or buckets[1] or strategy not in ("shared", "zero1") or (precision and precision.scaler)
    return Settings(*sizes, optimizer, arguments, scheduler, schedule, strategy, "two-phase" if is_two_phase else "auto",
                    *buckets, max_norm or None, drop_last, precision)


def _load(config: Mapping | str | os.PathLike) -> Mapping:
    if not isinstance(config, (str, os.PathLike)):
        return config
    with open(config, encoding="utf-8") as file:
        try:
            return json.load(file, object_pairs_hook=_refuse_doubles)
        except json.JSONDecodeError as e:
            raise ValueError(f"{os.fspath(config)}: no JSON: {e}") from e


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the config has the key '{double}' twice in one dict; remove one")
    return found


def batch_sizes(train: int | None, micro: int | None, accumulation: int | None, n_ranks: int) -> tuple[int, int, int]:
    """
    train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks: two of the three give the third,
    and one of the first two gives both others, with one batch a step. ValueError, with the numbers.
    """
    if train is None and micro is None:
        raise ValueError("the config has neither train_batch_size nor train_micro_batch_size_per_gpu; one is needed")
    if micro is None:
        micro = train // ((accumulation or 1) * n_ranks)
    if accumulation is None:
        accumulation = 1 if train is None else train // max(1, micro * n_ranks)
    if train is None:
        train = micro * accumulation * n_ranks
    if micro < 1 or accumulation < 1 or train != micro * accumulation * n_ranks:
        raise ValueError(f"train_batch_size {train} is not train_micro_batch_size_per_gpu {micro} x "
                         f"gradient_accumulation_steps {accumulation} x {n_ranks} ranks = "
                         f"{micro * accumulation * n_ranks}; each must be 1 or more")
    return train, micro, accumulation


def _optimizer(section: _Section) -> tuple[str, dict[str, Any]]:
    given = section.take("type", "", str)
    kind = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}.get(given.lower())
    if kind is None:
        raise ValueError(f"optimizer.type is {given!r}; weightd.train has AdamW, Adam and SGD")
    params = section.section("params")
    arguments = {"lr": params.take("lr", 1e-3)}
    if params.take("max_grad_norm", None) is not None:
        raise ValueError("optimizer.params.max_grad_norm: DeepSpeed refuses it, too; use gradient_clipping")
    if kind == "SGD":
        arguments |= {"momentum": params.take("momentum", 0.0), "weight_decay": params.take("weight_decay", 0.0),
                      "nesterov": params.take("nesterov", False, bool)}
    else:
        # "Adam" is AdamW in DeepSpeed, unless adam_w_mode is false; and its decay is 0 where torch's is 0.01.
        if params.take("adam_w_mode", True, bool):
            kind = "AdamW"
        decay = 0.01 if kind == "AdamW" and params.take("torch_adam", False, bool) else 0.0
        arguments |= {"betas": _betas(params), "eps": params.take("eps", 1e-8),
                      "weight_decay": params.take("weight_decay", decay)}
    params.close()
    section.close()
    return kind, arguments


def _betas(params: _Section) -> tuple[float, float]:
    betas = params.take("betas", [0.9, 0.999], (list, tuple))
    if len(betas) != 2:
        raise ValueError(f"{params.path('betas')} is {betas!r}, and must be two numbers")
    return tuple(betas)


def _scheduler(section: _Section) -> tuple[str | None, dict[str, Any]]:
    kind, params = section.take("type", None, str), section.section("params")
    if kind not in (None, "WarmupLR", "WarmupDecayLR"):
        raise ValueError(f"scheduler.type is {kind!r}; initialize() has WarmupLR and WarmupDecayLR, and takes any scheduler "
                         "of torch as lr_scheduler=lambda optimizer: ...")
    found: dict[str, Any] = {}
    if kind is not None:
        found = {"warmup_min_lr": params.take("warmup_min_lr", 0.0),
                 "warmup_max_lr": params.take("warmup_max_lr", None if kind == "WarmupLR" else 0.001),
                 "warmup_num_steps": params.take("warmup_num_steps", 1000, int),
                 "warmup_type": params.take("warmup_type", "log", str)}
        if found["warmup_num_steps"] < 1:
            raise ValueError(f"scheduler.params.warmup_num_steps is {found['warmup_num_steps']}; it must be 1 or more")
        if found["warmup_type"] not in ("log", "linear"):
            raise ValueError(f"scheduler.params.warmup_type is {found['warmup_type']!r}; there are 'log' and 'linear'")
    if kind == "WarmupDecayLR":
        found["total_num_steps"] = params.take("total_num_steps", None, int)
        if found["total_num_steps"] is None:
            raise ValueError("scheduler.params.total_num_steps is missing, which WarmupDecayLR needs")
    params.close()
    section.close()
    return kind, found


def _zero(section: _Section) -> tuple[str, int, bool, int | None, bool]:
    """Strategy, elements of a bucket, overlap, units and prefetch."""
    stage = section.take("stage", 0, int)
    for key in ("offload_optimizer", "offload_param"):
        offload = section.section(key)
        offload.close()
    if stage not in _STRATEGIES:
        raise ValueError(f"zero_optimization.stage is {stage}; there are 0 to 3")
    bucket_elements = section.take("reduce_bucket_size", 0, int)
    overlap = section.take("overlap_comm", stage >= 2, bool)
    if stage >= 2 and not overlap:
        raise ValueError(f"zero_optimization.overlap_comm is false, and gradients of stage {stage} are summed during backward: "
                         "there is no memory for all of them; remove the key, or use stage 1")
    units, prefetch = _units(section, bucket_elements) if stage == 3 else (None, True)
    section.close()
    return _STRATEGIES[stage], bucket_elements, overlap, units, prefetch


def _units(section: _Section, bucket_elements: int) -> tuple[int, bool]:
    if bucket_elements:
        raise ValueError("zero_optimization.reduce_bucket_size: gradients of stage 3 are summed unit by unit; "
                         "stage3_param_persistence_threshold, or units= of initialize(), is about their size")
    # Smaller modules are gathered with the one around them, where DeepSpeed keeps smaller parameters.
    least = section.take("stage3_param_persistence_threshold", 100000, int)
    ahead = section.take("stage3_prefetch_bucket_size", 50000000, int)
    if least < 0 or ahead < 0:
        raise ValueError(f"zero_optimization.stage3_param_persistence_threshold is {least} and stage3_prefetch_bucket_size is "
                         f"{ahead}; they must not be negative")
    return max(1, least), ahead > 0


def _precision(root: _Section) -> Precision | None:
    fp16, bf16, types = root.section("fp16"), root.section("bf16"), root.section("data_types")
    reduce = types.take("grad_accum_dtype", None, str)
    if reduce not in (None, *_DTYPES):
        raise ValueError(f"data_types.grad_accum_dtype is {reduce!r}; there are {', '.join(_DTYPES)}")
    types.close()
    is_fp16, is_bf16 = (section.take("enabled", False, bool) for section in (fp16, bf16))
    if is_fp16 and is_bf16:
        raise ValueError("fp16.enabled and bf16.enabled are both true; parameters have one type")
    if not is_fp16 and not is_bf16:
        if reduce not in (None, "fp32"):
            raise ValueError(f"data_types.grad_accum_dtype is {reduce!r}, and parameters are float32; it needs "
                             "fp16.enabled or bf16.enabled")
        return None
    if is_bf16:
        # A step with a gradient that is not finite is skipped, which a scaler does whose scale stays 1.
        scaler = _constant(1.0) if bf16.take("check_grad_overflow", True, bool) else None
        bf16.close()
        return Precision("bfloat16", _DTYPES.get(reduce), False, scaler)
    cast_inputs, scaler = fp16.take("auto_cast", False, bool), _fp16_scaler(fp16)
    fp16.close()
    return Precision("float16", _DTYPES.get(reduce), cast_inputs, scaler)


def _fp16_scaler(fp16: _Section) -> dict[str, Any]:
    static, power = fp16.take("loss_scale", 0), fp16.take("initial_scale_power", 16, int)
    window = fp16.take("loss_scale_window", 1000, int)
    if static < 0 or window < 1:
        raise ValueError(f"fp16.loss_scale is {static}, and must not be negative; fp16.loss_scale_window is {window}, and "
                         "must be 1 or more")
    if static:
        return _constant(float(static))
    return {"init_scale": 2.0 ** power, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": window}


def _constant(scale: float) -> dict[str, Any]:
    return {"init_scale": scale, "growth_factor": 1.0, "backoff_factor": 1.0, "growth_interval": 1}
