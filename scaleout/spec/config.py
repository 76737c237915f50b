"""A config.json of the Hugging Face Hub: what it says of a model, as the fields of a `Shape`, or in one line why not.

`families` has what each family is. Nothing is downloaded.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaleout.spec import checks
from scaleout.spec.families import FAMILIES, SIZES, Family
from scaleout.spec.variant import ATTENTION, LIKE_LLAMA, MLP, Variant

KNOWN = tuple(FAMILIES)
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
# Heads by the end of an architecture's name (transformers 5.24, modeling_layers.py and the families' own classes):
# whether it is as wide as the vocabulary, has a column per label, or two; whether it has a bias.
HEADS: dict[str, tuple[Any, bool]] = {"ForCausalLM": ("vocabulary", False), "LMHeadModel": ("vocabulary", False),
         "ForSequenceClassification": ("labels", False), "ForTokenClassification": ("labels", True),
         "ForQuestionAnswering": (2, True)}  # fmt: skip
BASE = re.compile(r"(?!.*(For|Head))\w+Model$")  # of embeddings: LlamaModel, Gemma3TextModel
# Keys that are null where they mean something else than what the family has where it is silent.
NULLS = ("num_key_value_heads", "sliding_window", "q_lora_rank", "attn_logit_softcapping", "final_logit_softcapping")
OPTIONAL = ("model_type", "architectures", "layer_types", "num_labels", "id2label", "intermediate_size",
            "moe_intermediate_size", "shared_expert_intermediate_size", "num_experts_per_tok", "kv_lora_rank",
            "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")  # fmt: skip
# Keys by which a file is known to be no model's config.json, but one that stands beside it, or has the model inside it.
STRANGE = ("peft_type", "base_model_name_or_path", "dim", "n_layers", "n_heads", "text_config")
FAMILY_KEYS = tuple(key for family in FAMILIES.values() for key in (*family.silent, *family.names))
KEYS = tuple(dict.fromkeys((*OPTIONAL, *SIZES, *EXPERTS, *FAMILY_KEYS, *STRANGE)))  # all that is read
# Keys that change no size: of how text is made and of numbers that are computed with.
IDLE = re.compile(
    r"""_name_or_path|auto_map|(torch_)?dtype|transformers_version|use_cache|is_decoder|pretraining_tp|[a-z_]*token_id|
    [a-z_]*dropout\w*|[a-z_]*pdrop|layerdrop|[a-z_]*eps(ilon)?|rope_\w+|rotary_\w+|partial_rotary_factor|
    init(ializer)?_\w+|gradient_checkpointing|apply_residual_connection_post_layernorm|hidden_act(ivation)?|
    activation(_function)?|original_max_position_embeddings|attn_implementation|[a-z]+_multiplier|logits_scaling|query_pre_attn_scalar|cache_implementation|label2id|problem_type|summary_\w+|
    task_specific_params|n_ctx|router_\w+|output_router_logits|norm_topk_prob|topk_\w+|n_group|routed_scaling_factor|
    scoring_func|(seq_)?aux(_loss_alpha)?|ep_size|no_rope_\w+|return_dict|output_(attentions|hidden_states)|prefix|
    swiglu_\w+|experts_per_token|initial_context_length|clip_qkv|tokenizer_class|scale_attn_\w+|
    reorder_and_upcast_attn|use_bidirectional_attention|chunk_size_feed_forward|moe_layer_freq|num_nextn_predict_layers""",
    re.VERBOSE,
)
DEEPEST = 1024  # layers
LARGEST = 10**6  # bytes of a config.json at most: what has more is no such file, and is not read


class Values(dict):
    """The values of a config.json under the shared names of keys; a missing one is refused under the family's."""

    def __init__(self, kind: str, family: Family, config: Mapping[str, Any]) -> None:
        super().__init__(family.silent | {family.names.get(key, key): value for key, value in config.items()})
        self.kind, self.names = kind, {shared: own for own, shared in family.names.items()}

    def __missing__(self, key: str) -> Any:
        raise ValueError(f"{_a(self.kind)} lacks {self.names.get(key, key)}")


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def read(text: str) -> dict:
    """What of a config.json is read. ValueError, in one line, for a text that is none."""
    return _read(parsed(text))


def parsed(text: str) -> dict:
    try:
        config = json.loads(text.lstrip("\ufeff"))  # a byte-order mark, as some editors write it
    except (ValueError, RecursionError):
        raise ValueError("this is not JSON: paste a whole config.json, from { to }") from None
    if not isinstance(config, dict):
        raise ValueError("a config.json is an object, from { to }")
    return config


def _read(config: Mapping[str, Any]) -> dict:
    return {key: config[key] for key in KEYS if key in config and (config[key] is not None or key in NULLS)}


def unread(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of a config.json's keys that are neither read nor known to change no size: what they do is not counted."""
    return tuple(key for key in config if key not in KEYS and not IDLE.fullmatch(key) and config[key] is not None)


def opened(config: Mapping | str | Path) -> dict:
    """All that is in a config.json: of a file, of a folder with one, or a dictionary. ValueError, in one line."""
    if isinstance(config, Mapping):
        return dict(config)
    if not isinstance(config, (str, Path)):
        raise ValueError(f"a model is a config.json, its folder or a dictionary, not {checks.said(config)}")
    path, shown = Path(config), str(config)
    shown = shown if len(shown) <= 60 else f"…{shown[-60:]}"  # of a long path its end, which has the file's name
    try:
        path = path / "config.json" if path.is_dir() else path
        with path.open("rb") as file:
            found = file.read(LARGEST + 1)  # no more of what has no end, as a device
        text = "" if len(found) > LARGEST else found.decode("utf-8")
    except (OSError, ValueError) as error:
        gone = ": there is no such file" * isinstance(error, FileNotFoundError)
        raise ValueError(f"{checks.said(shown)} is no config.json, and no folder with one{gone}") from None
    if len(found) > LARGEST:
        raise ValueError(
            f"{checks.said(shown)} is larger than the {LARGEST // 10**6} MB that a config.json has at most"
        )
    return parsed(text)


def fields(config: Mapping | str | Path) -> dict[str, Any]:
    """The fields of the Shape of a model, whatever its head: of a file, a folder or a dictionary. ValueError, in one
    line, for what is missing and what is not known."""
    config = opened(config)
    _check_is_model(config)
    values = _read(config)
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"this config.json {_unknown(kind, config)}: {', '.join(KNOWN)} are known")
    try:
        return _fields(Values(kind, FAMILIES[kind], values))
    except ValueError as error:
        raise ValueError(f"this config.json: {error}") from None


def _check_is_model(config: Mapping[str, Any]) -> None:
    """ValueError for files that stand beside a model's config.json, or in its place."""
    if "peft_type" in config:
        base = checks.said(str(config.get("base_model_name_or_path")))
        raise ValueError(f"this file is an adapter's: take the config.json of its base model, {base}")
    if {"dim", "n_layers", "n_heads"} <= config.keys():
        raise ValueError("this is Meta's params.json: take the config.json of the same model for transformers")


def _unknown(kind: object, config: Mapping[str, Any]) -> str:
    if kind is None:
        return "lacks model_type"
    if isinstance(config.get("text_config"), dict):
        return f"is of model_type {str(kind)[:40]!r}, with a language model inside it: take its text_config"
    near = difflib.get_close_matches(str(kind)[:40], KNOWN, 1, 0.75)
    return f"is of model_type {str(kind)[:40]!r}" + (f", and not {near[0]}" if near else "")


def architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [str(name)[:60] for name in (names if isinstance(names, list) else [names] if names is not None else [])]


def _head(config: Mapping[str, Any]) -> tuple[int | None, bool]:
    """(labels, whether they have a bias) of a model's head: None for a language model's, 0 for none."""
    heads: set[tuple[Any, bool]] = set()
    for name in architectures(config):
        end = next((end for end in HEADS if name.endswith(end)), "")
        if not end and not BASE.match(name):
            raise ValueError(f"the head of a {name} is not known, only those of ...{', ...'.join(HEADS)} and ...Model")
        heads.add(HEADS[end] if end else (0, False))
    if len(heads) > 1:
        raise ValueError(f"architectures of several heads are no model: {', '.join(architectures(config))}")
    width, bias = HEADS["ForCausalLM"]
    if heads:
        width, bias = heads.pop()
    labels = config.get("num_labels", 2)
    if isinstance(config.get("id2label"), dict):
        labels = len(config["id2label"])
    if width == "vocabulary":
        return None, bias
    return labels if width == "labels" else width, bias


def _fields(values: Values) -> dict[str, Any]:
    sizes = {
        "layers": values["num_hidden_layers"],
        "hidden": values["hidden_size"],
        "heads": values["num_attention_heads"],
        "vocab": values["vocab_size"],
        "ff": values["intermediate_size"],
        "kv_heads": values["num_key_value_heads"],
        "head_dim": values["head_dim"],
        "max_seq": values["max_position_embeddings"],
        "tied_head": values["tie_word_embeddings"],
    }
    for name in ("layers", "hidden", "heads"):
        checks.whole(name, sizes[name])
    if sizes["layers"] > DEEPEST:
        raise ValueError(f"{sizes['layers']:,} layers are more than the {DEEPEST:,} that are priced")
    fields = sizes | FAMILIES[values.kind].blocks(values)
    extra = next((key for key in EXPERTS if values.get(key) and "experts" not in fields), None)
    if extra:
        raise ValueError(f"{_a(values.kind)} has no experts, and no {extra}")
    features = {name: fields.pop(name) for name in [*fields] if name in Variant.__dataclass_fields__}
    features["family"] = FAMILIES[values.kind].modules
    features["labels"], bias = _head(values)
    biases = features.get("biases", (*ATTENTION, *MLP, "norm") if fields["bias"] else ())
    if bias or "biases" in features:
        features["biases"] = (*biases, *("head",) * bias) or None
    variant = Variant(**features)
    return fields | {"variant": None if variant == LIKE_LLAMA else variant}
