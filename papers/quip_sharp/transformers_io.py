"""Saving and loading of quantised models as folders that transformers reads by itself.

    import papers.quip_sharp.transformers_io                                        # registers the quantiser
    model = AutoModelForCausalLM.from_pretrained("quantised-folder")   # then model.generate(...), as ever

`save_pretrained(model, folder, tokenizer)` writes such a folder: config.json says which linears are quantised and how
(key `quantization_config`), model.safetensors holds the words. Loading raises ValueError where a tensor is missing, of
the wrong shape, or not known: transformers itself would only report it, and compute with words that were never set.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from papers.quip_sharp.checkpoint import FORMAT, rebuild, structure
from papers.quip_sharp.linear import QuantLinear

METHOD = "quip_sharp"
CONFIG = "config.json"
# safetensors' names of the types that the tensors of a QuantLinear have, whatever the type of the model
KINDS = {"words": "U8", "SU": "F16", "SV": "F16", "scale": "F32", "U_phases": "F16", "V_phases": "F16"}


@register_quantization_config(METHOD)
class QuipSharpConfig(QuantizationConfigMixin):
    """`quantization_config` of a quantised folder: what `checkpoint.structure` says of the model."""

    def __init__(self, format: int = FORMAT, tied_head: bool = False, linears: dict | None = None,
                 parts: dict | None = None, quant_method: str = METHOD):  # fmt: skip
        if format != FORMAT:
            raise ValueError(f"the folder has format {format!r} of quip_sharp, this version reads {FORMAT}")
        self.quant_method = quant_method  # type: ignore[assignment]  # transformers has an enum of its own methods
        self.format, self.tied_head = format, tied_head
        self.linears, self.parts = linears or {}, parts or {}


@register_quantizer(METHOD)
class QuipSharpQuantizer(HfQuantizer):
    """Puts empty QuantLinears in place before the weights are read, and checks that every one of their tensors is."""

    requires_calibration = True
    quantization_config: Any

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: Any = None, **kwargs: Any) -> Any:
        try:
            with torch.device("meta"):
                rebuild(model, self.quantization_config.to_dict())
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise ValueError(
                f"config.json does not describe this model ({error!r}): load it with AutoModelForCausalLM, "
                "or get the folder again"
            ) from error
        self.files = list(checkpoint_files or [])
        check_tensors(model, self.files)
        return model

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        # transformers casts floats to the model's dtype; scales, signs and phases keep their own
        with torch.no_grad():
            wanted = {
                f"{name}.{own}": (linear, own, buffer.device)
                for name, linear in _quant_linears(model).items()
                for own, buffer in linear.named_buffers()
                if own != "bias"
            }
            for file in self.files:
                with opened(file) as tensors:
                    for key in wanted.keys() & set(tensors.keys()):
                        linear, own, device = wanted[key]
                        linear._buffers[own] = tensors.get_tensor(key).to(device)
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[None, dict]:
        """Called first by `save_pretrained`: the config says what the model is now, tensors keep their names."""
        if any(isinstance(linear.SU, nn.Parameter) for linear in _quant_linears(model).values()):
            raise ValueError(
                "the model is being tuned: end that with set_tuning(False) on its QuantLinears before saving"
            )
        model.config.quantization_config = self.quantization_config = QuipSharpConfig(**structure(model))
        # or some architectures (gpt_neox, mixtral) are written under the names of old releases
        model._weight_conversions = []
        return None, {}

    def is_serializable(self, **kwargs: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


def attach(model: Any) -> None:
    """Make a quantised model's own `save_pretrained` write such a folder. ValueError where it has no QuantLinear."""
    if not _quant_linears(model):
        raise ValueError("the model has no QuantLinear: quantise it with a QuIP# method first")
    model.hf_quantizer = QuipSharpQuantizer(QuipSharpConfig())  # filled in when the model is saved


def save_pretrained(model: Any, folder: str | Path, tokenizer: Any = None) -> None:
    """Write a quantised model so that `from_pretrained` loads it. A folder that was cut short has no config.json.

    ValueError where the model has no QuantLinear, or is in tuning, or the folder is a file.
    """
    folder = Path(folder).resolve()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name a folder")
    attach(model)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as scratch:
        model.save_pretrained(scratch)
        if tokenizer is not None:
            tokenizer.save_pretrained(scratch)
        (folder / CONFIG).unlink(missing_ok=True)  # of what was here before
        for file in sorted(Path(scratch).iterdir(), key=lambda file: file.name == CONFIG):  # it comes last
            file.replace(folder / file.name)


def check_tensors(model: nn.Module, files: list[str]) -> None:
    """Raise ValueError unless the files hold exactly the model's tensors, whole, of the right shapes and types."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found: dict[str, tuple[int, ...]] = {}
    kinds: dict[str, str] = {}
    for file in files:
        with opened(file) as tensors:
            for key in tensors.keys():  # noqa: SIM118
                part = tensors.get_slice(key)
                found[key], kinds[key] = tuple(part.get_shape()), part.get_dtype()
    missing, unexpected = set(expected) - set(found), set(found) - set(expected)
    for group in _tied(model):
        if present := [name for name in group if name in found]:
            missing -= set(group)
            unexpected |= set(present[1:])
    wrong = sorted(key for key in expected.keys() & found.keys() if expected[key] != found[key])
    own = {f"{name}.{tensor}": kind for name in _quant_linears(model) for tensor, kind in KINDS.items()}
    typed = sorted(key for key, kind in own.items() if kinds.get(key, kind) != kind)
    for keys, what in (
        (sorted(missing), "missing"),
        (sorted(unexpected), "not of this model"),
        (wrong, "of the wrong shape"),
        (typed, "of the wrong type"),
    ):
        if keys:
            raise ValueError(
                f"the quantised folder is damaged, {len(keys)} tensors are {what} ({', '.join(keys[:3])}"
                f"{', ...' if len(keys) > 3 else ''}): quantise the model again, or get the folder again"
            )


def _quant_linears(model: nn.Module) -> dict[str, QuantLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantLinear)}


def _tied(model: nn.Module) -> list[list[str]]:
    """Names under which one tensor stands, or will once weights are tied: a file has one of them, the first say."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    groups = [group for group in names.values() if len(group) > 1]
    keys = getattr(model, "_tied_weights_keys", None)
    if getattr(getattr(model, "config", None), "tie_word_embeddings", False) and isinstance(keys, dict):
        groups += [[source, name] for name, source in keys.items()]
    return groups


@contextlib.contextmanager
def opened(file: str | Path) -> Iterator[Any]:
    """A safetensors file. ValueError where it is cut short or not one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), "pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(
            f"{file} is cut short or damaged ({error}): quantise the model again, or get it again"
        ) from error
