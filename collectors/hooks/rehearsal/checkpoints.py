"""Checkpoints of a rehearsal: saved ones are kept by name, loaded ones lie where it is asked.

Nothing is written: a script that loads what it saved gets the same tensors. Files that were there
before are read on the processor, and what ``map_location`` (or the file) puts on an accelerator
becomes fake there, with its values where it is small. Weights that would have to be downloaded
have the shapes of whatever they are loaded into.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Checkpoints:
    """``torch.save`` and ``torch.load`` of a rehearsal.

    ``saved``: called with the bytes of each checkpoint.
    """

    def __init__(self, saved: Callable[[int], None]) -> None:
        self._saved = saved
        self._kept: dict[Any, Any] = {}  # by path, or by the identity of an open file
        self._load = torch.load

    def save(self, obj: Any, f: Any, *_: Any, **__: Any) -> None:
        """Keep what is saved, and leave an empty file where scripts look for it."""
        self._saved(_bytes_in(obj))
        if isinstance(f, (str, os.PathLike)):
            Path(f).touch()  # where the overlay has it
        self._kept[_key(f)] = obj, f

    def load(self, f: Any, map_location: Any = None, *rest: Any, **named: Any) -> Any:
        """Return what was saved, or what lies in the file, on the devices that are asked for."""
        if _key(f) in self._kept:
            kept, _ = self._kept[_key(f)]
            return _placed(kept, lambda one: _device(map_location, str(one.device)))
        where: dict[int, str] = {}

        def noted(storage: Any, location: str) -> Any:
            where[storage._cdata] = _device(map_location, location, storage)
            return storage

        found = self._load(f, noted, *rest, **named)
        usual = max(where.values(), key=list(where.values()).count, default="")

        def device(one: Any) -> str:  # parameters have been made anew
            known = one.layout is torch.strided and one.untyped_storage()._cdata
            return where.get(known, usual)

        return _placed(found, device)


def _key(f: Any) -> Any:
    return os.path.realpath(f) if isinstance(f, (str, os.PathLike)) else id(f)


def _device(asked: Any, location: str, storage: Any = None) -> str:
    """Return where a storage goes; empty where it stays."""
    if asked is None:
        return location
    if isinstance(asked, dict):
        return str(asked.get(location, location))
    if not callable(asked):
        return str(torch.device("cuda", asked) if isinstance(asked, int) else asked)
    try:
        made = asked(storage, location)
    except Exception:  # ``storage.cuda()``: there is no memory to put it into
        return "cuda"
    return location if made is None else str(getattr(made, "device", "cpu"))


def _placed(value: Any, device_of: Callable[[Any], str]) -> Any:
    """Return what was loaded, however nested, with its tensors on their devices."""
    known: dict[int, Any] = {}  # tensors that are one stay one

    def placed(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            device = device_of(one)
            if not device or torch.device(device) == one.device:
                return one
            if id(one) not in known:
                known[id(one)] = one, one.detach().to(device).requires_grad_(one.requires_grad)
            return known[id(one)][1]
        if isinstance(one, nn.Module):
            first = next(one.parameters(), None)
            device = "" if first is None else device_of(first)
            return one.to(device) if device else one
        if isinstance(one, (dict, list)):
            made = copy.copy(one)
            for key in one if isinstance(one, dict) else range(len(one)):
                made[key] = placed(one[key])
            return made
        return tuple(map(placed, one)) if type(one) is tuple else one

    return placed(value)


class Absent(dict):  # type: ignore[type-arg]
    """The weights of a file that is not here: all that a module asks for."""


def without_downloads(note: Callable[[str], None]) -> None:
    """Have weights that are not here be those of the modules that load them."""
    hub: Any = torch.hub
    module: Any = nn.Module
    fetch, load = hub.load_state_dict_from_url, module.load_state_dict

    def load_state_dict_from_url(url: str, model_dir: Any = None, *args: Any, **named: Any) -> Any:
        folder = model_dir or os.path.join(hub.get_dir(), "checkpoints")
        name = named.get("file_name") or url.rpartition("/")[2].partition("?")[0]
        if os.path.exists(os.path.join(folder, name)):
            return fetch(url, model_dir, *args, **named)
        note("the weights of %s are not here: shapes are the model's" % name)
        return Absent()

    def load_state_dict(self: Any, state_dict: Any, *args: Any, **named: Any) -> Any:
        if isinstance(state_dict, Absent):
            state_dict = self.state_dict()
        return load(self, state_dict, *args, **named)

    hub.load_state_dict_from_url = load_state_dict_from_url
    module.load_state_dict = load_state_dict


def of_shapes(module: Any) -> None:
    """Have Transformers fill its models with fakes, by their configuration: no weights are read.

    ``module``: ``transformers.modeling_utils``. It makes a model without memory, and all that
    follows (types, devices, quantisation, ties) is its own. Releases before 4.50 read their files.
    """
    find = getattr(module, "_get_resolved_checkpoint_files", None)
    if find is None:
        return
    fill = module.PreTrainedModel._load_pretrained_model

    def files(*args: Any, **named: Any) -> Any:
        if "download_kwargs" in named:  # a configuration may be fetched, weights are not
            named["download_kwargs"] = {**named["download_kwargs"], "local_files_only": True}
        try:
            return find(*args, **named)
        except OSError:
            kind = str(torch.get_default_dtype())[6:]  # where nobody says one
            return [], {"dtype": kind, "all_checkpoint_keys": [], "weight_map": {}}

    def load(
        model: Any, state_dict: Any, files: Any, config: Any, *rest: Any, **named: Any
    ) -> Any:
        if state_dict is None:
            state_dict, files = {}, None
            for name, tensor in model.state_dict().items():
                kind = getattr(config, "dtype", None) if tensor.is_floating_point() else None
                with torch.device("cpu"):
                    state_dict[name] = nn.Parameter(
                        torch.empty(tensor.shape, dtype=kind or tensor.dtype), False
                    ).detach()
        return fill(model, state_dict, files, config, *rest, **named)

    module._get_resolved_checkpoint_files = files
    module.PreTrainedModel._load_pretrained_model = staticmethod(load)


def of_diffusion(module: Any) -> None:
    """Have Diffusers make its models by their configuration: no weights are read.

    ``module``: ``diffusers.models.modeling_utils``.
    """
    model: Any = module.ModelMixin

    def from_pretrained(cls: Any, /, *args: Any, **named: Any) -> Any:
        path = args[0] if args else named.pop("pretrained_model_name_or_path")
        kind = named.pop("torch_dtype", None)
        config, rest = cls.load_config(path, return_unused_kwargs=True, **named)
        made = cls.from_config(config, **{k: v for k, v in rest.items() if k in config})
        made.register_to_config(_name_or_path=str(path))
        made = made if kind is None else made.to(kind)
        made.eval()
        return (made, {}) if named.get("output_loading_info") else made

    for one in (model, getattr(module, "LegacyModelMixin", model)):
        one.from_pretrained = classmethod(from_pretrained)


def _bytes_in(value: Any) -> int:
    """Return the bytes of the tensors in what is saved, however nested."""
    if hasattr(value, "element_size") and hasattr(value, "numel"):
        return int(value.numel() * value.element_size())
    if isinstance(value, dict):
        return sum(_bytes_in(one) for one in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_bytes_in(one) for one in value)
    state = getattr(value, "state_dict", None)
    if callable(state) and not isinstance(value, type):
        return _bytes_in(state())
    return 0
