"""From a folder to a judge: what is refused, and what makes two judges the same one."""

import json
import shutil
import sys
from typing import Any

import pytest
import torch

from plaudit.config import load, parse
from plaudit.errors import ConfigError, DeviceError, JudgeError, MissingExtra, MissingPackage
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.judge import VlmJudge
from plaudit.judges.vlm.qwen3_vl import attention_on
from plaudit.registry import JUDGE_REGISTRY
from tiny_vlm import save_tiny


def copy_of(folder, target):
    shutil.copytree(folder, target)
    return target


def test_the_registry_builds_a_labeler(tiny):
    config: Any = JUDGE_REGISTRY.parse({"type": "vlm", "model": str(tiny), "rule": {"threshold": 0.9}})
    labeler = config.build()
    assert isinstance(labeler, VlmJudge)
    assert (labeler.id.source, labeler.rule.threshold) == ("vlm", 0.9)


def test_a_gpu_that_is_not_there_is_answered_with_what_to_do(tiny, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(DeviceError, match="there is no device 'cuda' here; this machine has 0 GPUs"):
        VlmJudgeConfig(model=str(tiny), device="cuda").load_backend()
    with pytest.raises(DeviceError, match="'gpu' is not a device; write cpu, cuda, cuda:1 or auto"):
        VlmJudgeConfig(model=str(tiny), device="gpu").load_backend()
    assert VlmJudgeConfig(model=str(tiny)).load_backend().warnings == (
        "torch sees no CUDA GPU here, so the model runs on the processor",
    )


def test_a_folder_of_a_model_without_images_is_refused(tiny, tmp_path):
    folder = copy_of(tiny, tmp_path / "other")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(JudgeError, match=r"transformers cannot load .* serve such a model with vLLM and set backend"):
        VlmJudgeConfig(model=str(folder)).load_backend()


@pytest.mark.parametrize("model", ["no/such-model", "nowhere/at/all"])
def test_a_model_that_is_not_here_is_not_fetched(model):
    with pytest.raises(JudgeError, match="set local_files_only: false for a model of the hub"):
        VlmJudgeConfig(model=model).load_backend()


def test_a_template_beside_the_tokenizer_is_found(tiny, tmp_path, scorer):
    folder = copy_of(tiny, tmp_path / "beside")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(JudgeError, match="has no chat template"):
        VlmJudgeConfig(model=str(folder), image_size=64).load_backend()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert VlmJudgeConfig(model=str(folder), image_size=64).load_backend().fingerprint == scorer.fingerprint


def test_the_fingerprint_is_of_weights_question_and_sight(tiny, tmp_path, make_scorer):
    others = [
        {"question": "Done?"},
        {"image_size": 96},
        {"cameras": ["front"]},
        {"frame_stride": 2},
        {"model": str(save_tiny(tmp_path, seed=1))},
    ]
    prints = {make_scorer(**settings).fingerprint for settings in [{}, {"max_batch_tokens": 7}, {"rule": {"k": 1}}]}
    assert len(prints) == 1  # of what does not change its numbers, nothing
    assert len(prints | {make_scorer(**settings).fingerprint for settings in others}) == 1 + len(others)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"transformers is not installed; run: pip install 'plaudit\[vlm\]'"):
        VlmJudgeConfig().load_backend()


def test_flash_attention_that_cannot_run_here_is_told_before_the_model_is_loaded(monkeypatch, tiny):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(MissingPackage, match=r"flash-attn is not installed.*or set attention: sdpa"):
        attention_on(torch.device("cuda"), "flash_attention_2")
    with pytest.raises(JudgeError, match="flash_attention_2 runs on a CUDA GPU, and the device is cpu; set auto"):
        VlmJudgeConfig(model=str(tiny), device="cpu", attention="flash_attention_2").build()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"backend": "openai"}, "needs an endpoint: {base_url: http://localhost:8000/v1}"),
        ({"endpoint": {"base_url": "http://here/v1"}}, "the backend is 'transformers'; set backend: openai"),
        ({"system_prompt": "Look."}, "must contain {task}"),
        ({"qestion": "Done?"}, "unknown key 'qestion'; did you mean 'question'?"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(settings, sentence):
    with pytest.raises(ConfigError) as error:
        parse(VlmJudgeConfig, settings)
    assert sentence in str(error.value)


@pytest.mark.parametrize("name", ["judge_vlm.yaml", "judge_vlm_endpoint.yaml"])
def test_the_examples_are_configs(name, request):
    assert load(VlmJudgeConfig, request.config.rootpath / "examples/configs" / name).type == "vlm"
